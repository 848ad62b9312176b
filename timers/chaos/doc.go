// Package chaos breaks a real deployment at random and checks that the promise
// holds (ADR 28). Three instances of the real program, a redis-server with the
// shipped redis.conf and a nats-server, each a process of its own, are killed,
// stopped, cut off, slowed and filled in a sequence that a seed replays, while
// requesters set, replace and cancel at a steady rate, many of them at the very
// moment when a timer is due.
//
// A [Ledger] keeps what was answered and what arrived. At the end [Judge] says
// where the two disagree, and [Report] fails a run that broke a promise and
// one that was too tame to have tried. make chaos is the way to run it.
//
// Instances reach Redis and NATS through a [Proxy] each; requesters and the
// recorder speak to NATS directly, so that the truth about what was stored does
// not depend on what is being broken.
package chaos
