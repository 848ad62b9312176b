// Package service is NATS in and out: it takes requests as a micro service
// (ADR-32 of NATS), and delivers fired timers.
//
// [Service] answers the subjects of docs/protocol.md. Handlers only read and
// check; what they accept is collected by a [batcher] and goes to Redis in
// batches, so that no request waits for another's round trip.
//
// [JetStream] and [Core] are the two ways to deliver. Both tell refused from
// unknown: refused means that NATS definitely does not have the message, and
// everything less certain is unknown (ADR 6). Both run on a connection of
// their own that keeps nothing for later ([Connect]).
package service
