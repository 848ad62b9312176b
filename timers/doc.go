// Package timers is what a timer is: its vocabulary, its keys, its life in
// Redis, and how it is fired.
//
// A timer is named by a topic and an id ([Ref]). In Redis it is a trigger key
// whose TTL is the due time, a shadow hash that holds everything, and a member
// of the backup sorted set whose score says when it next needs attention
// ([Keys]). Its life, each arrow one script under lua/:
//
//	          set                   claim (score <= now)            ack
//	(none) ────────► scheduled ──────────────────────────► firing ─────► gone
//	  ▲                 │   ▲                                 │
//	  └── cancel ───────┘   └── release, definitely refused ──┤
//	                                      firing, unsure ◄────┘ outcome unknown
//
// The expired event of the trigger key is only a hint, as is whatever the
// reconciler finds: [Firer] asks the claim script, which decides by the backup
// score and Redis's clock. So doubled, late or foreign hints, and any number
// of instances, are harmless. The score is also the lease: a claimer that dies
// lets it come round again, and the next claim knows that the life is unsure.
//
// What fails, and what is kept: a failure before a script ran changes nothing;
// one after it ran is met by the token of the claim, which makes claim, ack
// and release safe to repeat; set and cancel are never repeated, their caller
// is told [ErrUnconfirmed]. docs/decisions.md gives the reasons.
//
// The package knows Redis but not NATS: [Publisher] is declared here and
// implemented by timers/service.
package timers
