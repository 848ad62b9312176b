// Package embedded runs the servers of a Lapse that was given none: a
// redis-server child and a NATS server inside this process, both persistent in
// one data directory.
//
// The order is [Lock], then [StartRedis] and [StartNATS], and the reverse at
// the end:
//
//	<data>/lapse.lock        held by the living Lapse; holds its pid
//	<data>/redis/redis.lock  held by the living redis-server; holds its pid
//	<data>/redis/redis.conf  the shipped configuration, written at every start
//	<data>/redis/redis.sock  where redis-server listens, and nowhere else
//	<data>/redis/redis.log   what it says
//	<data>/redis/appendonlydir (appendonly.aof before Redis 7)
//	<data>/nats              JetStream's store
//
// Two redis-servers on one directory would each append to the same file and
// take the socket from each other without a word, so the locks decide who may
// start. They are flocks, which the kernel drops with the last process that
// holds them. redis-server inherits its own: when Lapse is killed, the child
// lives on and still holds redis.lock, which the next Lapse finds and ends
// before it starts another (see takeOver).
//
// What survives: redis-server with the shipped appendfsync everysec loses at
// most the last second of answered writes when the machine loses power, and
// nothing when only processes die. [StartNATS] gives JetStream the same
// measure.
package embedded
