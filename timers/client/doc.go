// Package client is how a Go service uses Lapse: it sets, reads, cancels, retries
// and lists timers by NATS request, and receives what they fire, live or from
// the stream. It works on the caller's own [nats.Conn] and pulls nothing of
// Redis into the caller's build.
//
// Promises:
//
//   - A set, a cancel or a retry is sent once. Nothing here sends it again, since a
//     late repeat would raise a cancelled timer or fire one twice. When its
//     answer is lost the error matches [ErrUnconfirmed]: get the timer, or set
//     it again with the same id.
//   - A get, a list or a status is sent again when nobody heard it, or when no
//     answer came in half of the time: two or three times in all.
//   - An error that matches [ErrUnavailable] means that nothing was stored.
//   - Every call ends: a context without a deadline gets [DefaultTimeout].
//   - What [Client.Handle] and [Client.Consume] start ends with its context, and
//     [Receiver.Wait] returns when nothing of it runs any more.
//   - The trace of the context of a set continues in the handler's context, as
//     the W3C's traceparent (ADR 30).
//
// Errors are *[Error] underneath and match the sentinels of this package with
// [errors.Is]; the cause (a NATS error, a context's end) matches too.
//
// Delivery is at least once: the copies of one fire have one [Fired.MsgID].
//
// The protocol itself, for other languages, is docs/protocol.md.
package client
