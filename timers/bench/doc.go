// Package bench measures Lapse from the outside, as its users meet it: how
// late timers fire, how fast they are set and drained, what they cost while
// they wait. It runs against any deployment, or against servers of its own,
// and beside the alternatives that people would pick instead (contestants).
//
// What makes a figure of it worth something:
//
//   - Lag is the time from due to the moment a subscriber had the event, on
//     Redis's clock. The offset between that clock and ours is estimated from
//     status requests and stated with its uncertainty.
//   - A timer that did not arrive counts as infinitely late, so that a service
//     cannot look fast by losing what is slow.
//   - Every contestant is asked in the same way: the same timers, the same
//     number of callers that each await an answer, servers in processes of
//     their own, one contestant at a time.
//
// On a deployment that is not the bench's own, the timers of a run have topics
// of their own, bench.<run>.t<n>; they are cancelled at the end, and the events
// they left in the stream are purged where that is permitted.
package bench
