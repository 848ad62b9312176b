package timers

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// MaxPartitions bounds what each list, each status and each idle second costs:
// all of them visit every partition.
const MaxPartitions = 256

// slots is the number of slots of a Redis Cluster.
const slots = 16384

// Keys spells every key and channel that Lapse uses in Redis, and is the only
// place that does (docs/decisions.md, ADR 3):
//
//	<prefix>:{p}:t:<topic>:<id>  trigger key: empty, its TTL is the due time
//	<prefix>:{p}:h:<topic>:<id>  shadow hash: payload and all that is known
//	<prefix>:{p}:due             backup set: score = next attention, ms
//	<prefix>:{p}:tried           timers claimed at least once in this life: score = due, ms
//	<prefix>:{p}:dead            timers that were given up on: score = due, ms
//	<prefix>:{p}:rev             last revision given out
//	<prefix>:{p}:probe:<random>  asks at the start what the Redis user may do; gone at once
//	<prefix>:meta                data version, partition count, deployment id
//	<prefix>:{crew}:members      instances; scores are 0
//	<prefix>:{crew}:alive:<id>   of one instance; its expiry is the event of its death
//	<prefix>:{crew}:probe:<id>   of one instance; must come back as an expired event; gone at once
//
// Beside keys, a notice of an instance to the others is spelled here, which goes
// over the channel of expired events and looks like a key:
//
//	<prefix>:{crew}:notice:<instance>:<partition>:<due, ms>
//
// {p} is the tag of the partition. All keys of one partition share a Cluster
// slot, so that one script can touch them.
type Keys struct {
	prefix string
	tags   []string
}

// NewKeys spells the keys of the prefix over 1 to [MaxPartitions] partitions.
func NewKeys(prefix string, partitions int) (*Keys, error) {
	if partitions < 1 || partitions > MaxPartitions {
		return nil, fmt.Errorf("%d partitions: want 1 to %d", partitions, MaxPartitions)
	}
	return &Keys{prefix: prefix, tags: partitionTags(partitions)}, nil
}

// Partitions is how many partitions there are.
func (k *Keys) Partitions() int { return len(k.tags) }

// Partition is the partition of the timer: a stable hash, so that every
// release and every instance finds it in the same place.
func (k *Keys) Partition(r Ref) int {
	if len(k.tags) == 1 {
		return 0
	}
	return int(xxhash.Sum64String(r.Member()) % uint64(len(k.tags)))
}

// Trigger is the key whose expiry is the event of the timer.
func (k *Keys) Trigger(r Ref) string { return k.TriggerPrefix(k.Partition(r)) + r.Member() }

// Shadow is the key of the hash that holds the timer.
func (k *Keys) Shadow(r Ref) string { return k.ShadowPrefix(k.Partition(r)) + r.Member() }

// TriggerPrefix is what all trigger keys of the partition begin with.
func (k *Keys) TriggerPrefix(p int) string { return k.in(p, "t:") }

// ShadowPrefix is what all shadow keys of the partition begin with.
func (k *Keys) ShadowPrefix(p int) string { return k.in(p, "h:") }

// Due is the backup set of the partition.
func (k *Keys) Due(p int) string { return k.in(p, "due") }

// Tried is the set of the partition's timers that were claimed in this life.
func (k *Keys) Tried(p int) string { return k.in(p, "tried") }

// Dead is the set of the partition's timers that were given up on.
func (k *Keys) Dead(p int) string { return k.in(p, "dead") }

// Rev is the revision counter of the partition.
func (k *Keys) Rev(p int) string { return k.in(p, "rev") }

// Probe is a key of one moment in the partition.
func (k *Keys) Probe(p int, random string) string { return k.in(p, "probe:"+random) }

// EventProbe is the key that the instance lets expire to see whether events
// come (ADR 27).
func (k *Keys) EventProbe(instance string) string { return k.crew("probe:" + instance) }

// ParseEventProbe reads the name of an event probe, of any instance; ok is
// false for every other key.
func (k *Keys) ParseEventProbe(key string) (instance string, ok bool) {
	instance, ok = strings.CutPrefix(key, k.EventProbe(""))
	return instance, ok && instance != ""
}

// Meta is the key of the deployment's own record.
func (k *Keys) Meta() string { return k.prefix + ":meta" }

// Members is the set of the instances on these keys.
func (k *Keys) Members() string { return k.crew("members") }

// Alive is the liveness key of an instance.
func (k *Keys) Alive(instance string) string { return k.crew("alive:" + instance) }

// ParseAlive reads the name of a liveness key; ok is false for every other key.
func (k *Keys) ParseAlive(key string) (instance string, ok bool) {
	return strings.CutPrefix(key, k.Alive(""))
}

// A Notice tells the other instances of a timer that may be the next one due.
type Notice struct {
	Instance  string // who set it
	Partition int
	Due       int64 // Unix milliseconds
}

// Notice spells a notice.
func (k *Keys) Notice(n Notice) string {
	return k.crew("notice:" + n.Instance + ":" + strconv.Itoa(n.Partition) + ":" + strconv.FormatInt(n.Due, 10))
}

// ParseNotice reads what [Keys.Notice] wrote; ok is false for everything else.
func (k *Keys) ParseNotice(s string) (n Notice, ok bool) {
	rest, ok := strings.CutPrefix(s, k.crew("notice:"))
	parts := strings.Split(rest, ":")
	if !ok || len(parts) != 3 || parts[0] == "" {
		return Notice{}, false
	}
	p, err := strconv.Atoi(parts[1])
	if err != nil || p < 0 || p >= len(k.tags) {
		return Notice{}, false
	}
	due, err := strconv.ParseInt(parts[2], 10, 64)
	return Notice{Instance: parts[0], Partition: p, Due: due}, err == nil && due >= 0
}

// ParseTrigger reads the name of a trigger key; ok is false for every other
// key, ours or foreign.
func (k *Keys) ParseTrigger(key string) (r Ref, ok bool) {
	rest, ok := strings.CutPrefix(key, k.prefix+":{")
	if !ok {
		return Ref{}, false
	}
	tag, member, ok := strings.Cut(rest, "}:t:")
	if !ok {
		return Ref{}, false
	}
	r, ok = ParseMember(member)
	if !ok || k.tags[k.Partition(r)] != tag {
		return Ref{}, false
	}
	return r, true
}

// ExpiredChannel is where Redis announces the expired keys of the database
// (https://redis.io/docs/latest/develop/pubsub/keyspace-notifications/).
func ExpiredChannel(db int) string { return "__keyevent@" + strconv.Itoa(db) + "__:expired" }

func (k *Keys) crew(name string) string { return k.prefix + ":{crew}:" + name }

func (k *Keys) in(p int, name string) string {
	return k.prefix + ":{" + k.tags[p] + "}:" + name
}

// partitionTags picks for each of n equal stretches of the slots the smallest
// number whose slot falls into it, so that partitions spread evenly over the
// nodes of a Cluster. One partition has the tag 0.
func partitionTags(n int) []string {
	tags := make([]string, n)
	for found, i := 0, 0; found < n; i++ {
		tag := strconv.Itoa(i)
		if p := Slot(tag) * n / slots; tags[p] == "" {
			tags[p] = tag
			found++
		}
	}
	return tags
}

// Slot is the Redis Cluster slot of a hash tag: CRC16 (XMODEM) modulo 16384
// (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/).
func Slot(tag string) int {
	crc := uint16(0)
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc % slots)
}
