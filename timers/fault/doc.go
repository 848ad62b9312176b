// Package fault marks the places where a crash, a delay or a missing part is
// worth a test (ADR 28). In a normal build a mark is an empty function that the
// compiler removes, and no part can be switched off. Built with the tag faults,
// the program obeys these variables of its environment:
//
//	FAULT_KILL=publish:17,ack:1  SIGKILL to itself at the 17th passing of publish,
//	                             or at the first of ack
//	FAULT_SLOW=publish:5ms       sleep at each passing
//	FAULT_OFF=reconcile          leave that part out
//
// None begins with LAPSE_: they are no settings, and no release knows them. A
// name or value that is not understood ends the program with exit code 2.
//
// The points of a fire: claim (before the claim is sent), claimed (after it was
// answered), publish (before each publish), sent (after the library took it),
// published (after NATS confirmed it), ack and acked (around the removal in
// Redis), release and released (around giving a claim back). Those of a timer
// that is given up on: bury and buried (around the burial), announce and
// announced (around all that is done to tell of it). Those of a dead instance:
// rescue and rescued (around giving its claims back, before it is struck off).
// Those of requests: set and stored, cancel and cancelled, retry and retried
// (before Redis, and after it before the reply). The points of claims, acks,
// releases, burials and requests are passed once for each batch.
package fault
