// Package client is how a Go service uses Lapse: it sets, reads, cancels, retries
// and lists timers by NATS request, and receives what they fire. It works on the
// caller's own [nats.Conn] and pulls nothing of Redis into the caller's build.
//
// Promises:
//
//   - A set, a cancel or a retry is sent once. Nothing here sends it again, since a
//     late repeat would raise a cancelled timer or fire one twice. When its
//     answer is lost the error matches [ErrUnconfirmed]: get the timer, or set
//     it again with the same id.
//   - An error that matches [ErrUnavailable] means that nothing was stored.
//   - Every call ends: a context without a deadline gets [DefaultTimeout].
//
// Errors are *[Error] underneath and match the sentinels of this package with
// [errors.Is]; the cause (a NATS error, a context's end) matches too.
//
// The protocol itself, for other languages, is docs/protocol.md.
package client
