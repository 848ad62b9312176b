// Package notify hears that Redis expired the trigger keys of timers.
//
// Redis publishes the name of each key that it expires on a Pub/Sub channel
// of the database, provided that notify-keyspace-events says so. Pub/Sub
// keeps nothing: whatever is published while nobody listens is gone. So what
// this package promises is not that every event is heard, but that every
// stretch of time in which one may have been lost is known and reported:
//
//	         dial, subscribe, confirmed        flags looked at, gap reported
//	waiting ───────────────────────► confirmed ──────────────────► hearing
//	   ▲                                 │                            │
//	   └──── back-off ◄──────────────────┴────────────────────────────┘
//	             first error of any kind, or probes unheard; gap reported
//
// After probes that were not heard, and where Redis hides its flags, a session
// hears only once an event has come: a probe asks for one at once (ADR 27).
//
// What fails, and what is done about it:
//
//	connection cut, Redis restarted     the next session, after 10 ms to 1 s
//	silence of a dead network           a ping every 3 s, 2 s for its answer
//	flags cleared or never set          added when allowed: on connect, every 5 s, at Check
//	CONFIG refused                      a probe on connect tells; health says how it is
//	a subscription that brings nothing  a probe after 10 s without an event, 2 s for it, twice; the next session
//	channel refused by an ACL           health names the channel and the ACL rule; tried again
//	the server became a replica         the session ends, the address is resolved anew
//
// An event is only a hint; the claim script decides. That is why a channel
// full of foreign keys, a repeated event or a forged one does no harm here.
package notify
