// Package faultproxy stands between Lapse and the real Redis and NATS, and does
// to single commands and messages what networks, proxies and servers in trouble
// do: it cuts before or after they took effect, delays them, stops reading,
// refuses connections, or answers in the server's place. The servers are real;
// only the way to them is not, so what it shows holds for them.
//
// A rule judges every command or message and says which [Fault] befalls it. A
// fault that is told of a reply waits for the reply: no test depends on who is
// faster.
package faultproxy
