// Package wire is the vocabulary of Lapse's NATS protocol: subjects, header
// names, the JSON of requests and replies, and the one table of errors. The
// service writes it and the client reads it; it depends on nothing, so that
// a caller's build stays small. docs/protocol.md is its prose.
package wire
