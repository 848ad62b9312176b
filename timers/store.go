package timers

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// MaxDelay is how far ahead a timer may be set: 100 years.
const MaxDelay = 36525 * 24 * time.Hour

// MaxBatch is how many timers one script call may take.
const MaxBatch = 512

// DataVersion is the version of the layout in Redis that this release writes.
const DataVersion = 1

// Store is the state of a deployment's timers in Redis. Every method that
// changes it is one script on one partition; all are safe for concurrent use.
type Store struct {
	rdb  redis.UniversalClient
	keys *Keys
	id   string // of the deployment; set by Open

	replicas int           // how many must have a change before it is answered
	within   time.Duration // how long they may take

	observe func(call string, took time.Duration, err error) // nil when nobody counts
}

// NewStore keeps timers in rdb under keys. The client must come from
// [ParseRedisURL]'s options: one that repeats commands would break the
// promise. Call [Store.Open] before anything else.
func NewStore(rdb redis.UniversalClient, keys *Keys) *Store {
	return &Store{rdb: rdb, keys: keys}
}

// AwaitReplicas makes [Store.Set], [Store.Cancel] and [Store.Retry] wait until at least n
// replicas have the change, for the given time at most, in whole milliseconds.
// Without enough of them they give [ErrReplicas] beside their results. It must
// come before [Store.Open], which asks for the right; 0 is the default.
func (s *Store) AwaitReplicas(n int, within time.Duration) { s.replicas, s.within = n, within }

// Keys is how the store spells its keys.
func (s *Store) Keys() *Keys { return s.keys }

// Deployment is the random id that all instances on these keys share.
func (s *Store) Deployment() string { return s.id }

// ErrDeployment is a record under <prefix>:meta that this instance must not
// work with.
var ErrDeployment = errors.New("the data in Redis belongs to another kind of deployment")

// record reads the deployment's record, writes what is missing of it, with id as
// the deployment's, and gives the id that stands there.
func (s *Store) record(ctx context.Context, id string) (deployment string, wrote bool, err error) {
	meta := s.keys.Meta()
	m, err := s.rdb.HGetAll(ctx, meta).Result()
	if err != nil {
		return "", false, err
	}
	// Written only where it is missing: a Redis at maxmemory refuses even what
	// is there already, and what is due must drain after a restart too.
	for field, value := range map[string]string{"version": strconv.Itoa(DataVersion), "partitions": strconv.Itoa(s.keys.Partitions()), "deployment": id} {
		if m[field] != "" {
			continue
		}
		if err := s.rdb.HSetNX(ctx, meta, field, value).Err(); err != nil {
			return "", false, err
		}
		wrote = true
		if m[field], err = s.rdb.HGet(ctx, meta, field).Result(); err != nil { // another instance may have been first
			return "", false, err
		}
	}
	if v := m["version"]; v != strconv.Itoa(DataVersion) {
		return "", false, fmt.Errorf("%w: %s has data version %+q, this release reads version %d; run the release that wrote it, or choose another LAPSE_PREFIX", ErrDeployment, meta, v, DataVersion)
	}
	if n := m["partitions"]; n != strconv.Itoa(s.keys.Partitions()) {
		return "", false, fmt.Errorf("%w: %s has %s partitions, LAPSE_PARTITIONS is %d; set it to %s, or choose another LAPSE_PREFIX", ErrDeployment, meta, n, s.keys.Partitions(), n)
	}
	return m["deployment"], wrote, nil
}

// Confirm looks whether the record is still the one of [Store.Open], and writes it
// again where it is gone: Redis was emptied, or another one is in its place. Without
// it, the next instance to start would found a deployment of its own beside this one, and
// another number of partitions would hide what is set from now on. Errors match
// [ErrDeployment] when the data are another deployment's now.
func (s *Store) Confirm(ctx context.Context) (wrote bool, err error) {
	id, wrote, err := s.record(ctx, s.id)
	if err == nil && id != s.id {
		err = fmt.Errorf("%w: %s is of deployment %s now and was of %s when this instance started; start it again, it then takes what is there",
			ErrDeployment, s.keys.Meta(), id, s.id)
	}
	return wrote, err
}

// Open reads the deployment's record, or writes it when this is the first
// instance, and asks for the rights that the scripts need. Errors match
// [ErrDeployment] for another data version or partition count, and
// [ErrRedisAuth] for a missing right; others are worth another try.
func (s *Store) Open(ctx context.Context) error {
	fail := func(err error) error {
		switch {
		case errors.Is(err, ErrDeployment):
			return err
		case isAuthError(err):
			return fmt.Errorf("%w: %w; README.md has the line that gives the user its rights", ErrRedisAuth, err)
		}
		return fmt.Errorf("opening %s: %w", s.keys.Meta(), err)
	}
	random := make([]byte, 8)
	rand.Read(random) //nolint:errcheck // documented never to fail
	id, _, err := s.record(ctx, hex.EncodeToString(random))
	if err != nil {
		return fail(err)
	}
	if err := s.rdb.Time(ctx).Err(); err != nil { // every script begins with it
		return fail(err)
	}
	if s.replicas > 0 {
		if err := s.rdb.Do(ctx, "WAIT", 0, 1).Err(); err != nil {
			return fail(err)
		}
	}
	keys := []string{s.keys.Probe(0, id+"1"), s.keys.Probe(0, id+"2"), s.keys.Probe(0, id+"3")}
	refused, err := s.run(ctx, scriptProbe, keys, nil).Text()
	switch {
	case err != nil:
		return fail(err)
	case missesRight(refused):
		return fmt.Errorf("%w: it may not run %s; README.md has the line that gives the user its rights", ErrRedisAuth, refused)
	case refused != "":
		return fmt.Errorf("opening %s: %s", s.keys.Meta(), refused)
	}
	s.id = id
	return nil
}

// SetItem asks for a timer. Due is At unless In is not negative.
type SetItem struct {
	Ref
	In       time.Duration // from now on Redis's clock, rounded up to the microsecond; negative: use At
	At       int64         // Unix milliseconds; a time in the past means now
	Schedule string        // as it was asked for
	Headers  []byte
	Payload  []byte
}

// SetResult is what became of a [SetItem].
type SetResult struct {
	Err error // *Invalid for a due time beyond MaxDelay; the rest is empty then
	Rev int64
	Due time.Time
	Was State // of the life it replaced, "" when there was none
}

// Set stores timers of partition p, at most [MaxBatch], in their order. An
// error is about all of them and matches [ErrUnavailable], [ErrOutOfMemory]
// (nothing was stored) or [ErrUnconfirmed] (it may have been). It must not be
// repeated blindly: a late repeat would raise a timer cancelled in between.
func (s *Store) Set(ctx context.Context, p int, items []SetItem) ([]SetResult, error) {
	keys := append(make([]string, 0, 4+2*len(items)), s.keys.Due(p), s.keys.Tried(p), s.keys.Rev(p))
	args := append(make([]any, 0, 1+6*len(items)), MaxDelay.Milliseconds())
	trigger, shadow := s.keys.TriggerPrefix(p), s.keys.ShadowPrefix(p)
	for i := range items {
		it := &items[i]
		member := it.Member()
		keys = append(keys, trigger+member, shadow+member)
		kind, n := "at", it.At
		if it.In >= 0 {
			kind, n = "in", int64((it.In+time.Microsecond-1)/time.Microsecond)
		} else if it.Schedule == atDue(time.UnixMilli(it.At)) {
			kind = "due"
		}
		args = append(args, member, kind, n, it.Payload, it.Headers, it.Schedule)
	}
	keys = append(keys, s.keys.Dead(p))
	cmd, short := s.runKept(ctx, scriptSet, keys, args)
	out, err := cmd.Slice()
	if err != nil {
		return nil, writeError(err)
	}
	if len(out) != 1+3*len(items) {
		return nil, fmt.Errorf("%w: set answered %d values for %d timers", ErrUnconfirmed, len(out), len(items))
	}
	results := make([]SetResult, len(items))
	for i := range items {
		v := out[1+3*i:]
		if integer(v[0]) == 0 {
			results[i].Err = &Invalid{What: "schedule", Value: items[i].Schedule, Rule: "out of range: at most 100 years ahead"}
			continue
		}
		results[i] = SetResult{Rev: integer(v[0]), Due: time.UnixMilli(integer(v[1])), Was: State(text(v[2]))}
	}
	return results, short
}

// CancelOutcome is what became of a cancel.
type CancelOutcome int

// The outcomes of a cancel.
const (
	CancelNotFound CancelOutcome = iota
	// Cancelled: this life will never be delivered.
	Cancelled
	// CancelTooLate: it was or may be delivered; no further attempt is made.
	CancelTooLate
	// CancelDead: it was dead and is gone; an attempt may have been delivered.
	CancelDead
)

// CancelResult is the outcome of a cancel and the rev of the life it met.
type CancelResult struct {
	Outcome CancelOutcome
	Rev     int64
}

// Cancel cancels timers of partition p, at most [MaxBatch]. Errors are those
// of [Store.Set], and like it, it must not be repeated blindly. The number is
// how many inconsistent records it removed on the way.
func (s *Store) Cancel(ctx context.Context, p int, refs []Ref) ([]CancelResult, int, error) {
	keys, args := append(s.refKeys(p, refs), s.keys.Dead(p)), make([]any, 0, len(refs))
	for _, r := range refs {
		args = append(args, r.Member())
	}
	cmd, short := s.runKept(ctx, scriptCancel, keys, args)
	out, err := cmd.Slice()
	if err != nil {
		return nil, 0, writeError(err)
	}
	if len(out) != 1+len(refs) {
		return nil, 0, fmt.Errorf("%w: cancel answered %d values for %d timers", ErrUnconfirmed, len(out), len(refs))
	}
	results := make([]CancelResult, len(refs))
	for i := range refs {
		if v, _ := out[i+1].([]any); len(v) == 2 {
			results[i] = CancelResult{Outcome: CancelOutcome(integer(v[0])), Rev: integer(v[1])}
		}
	}
	return results, int(integer(out[0])), short
}

// Get reads timers; the ones that do not exist are nil.
func (s *Store) Get(ctx context.Context, refs []Ref) ([]*Timer, error) {
	cmds := make([]*redis.SliceCmd, len(refs))
	began := time.Now()
	_, err := s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, r := range refs {
			cmds[i] = p.HMGet(ctx, s.keys.Shadow(r), "p", "h", "d", "r", "s", "a", "k", "u", "c", "f")
		}
		return nil
	})
	if err != nil && replyIs(err, "WRONGTYPE") {
		err = nil // of single ones, by a foreign hand
	}
	s.observed(callGet, began, err)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	out := make([]*Timer, len(refs))
	for i, cmd := range cmds {
		v := cmd.Val()
		if cmd.Err() != nil || len(v) < 10 || v[0] == nil || !isNumber(v[2], dueDigits) || !isNumber(v[3], revDigits) {
			continue
		}
		t := &Timer{
			Ref:      refs[i],
			Payload:  []byte(text(v[0])),
			Headers:  []byte(text(v[1])),
			Due:      time.UnixMilli(integer(v[2])),
			Rev:      integer(v[3]),
			Schedule: text(v[4]),
			Attempts: int(integer(v[5])),
			State:    Scheduled,
		}
		if v[4] == nil {
			t.Schedule = atDue(t.Due)
		}
		if v[6] != nil || v[7] != nil {
			t.State = Firing
		}
		if v[9] != nil {
			t.State, t.Reason = Dead, Reason(text(v[9]))
		}
		if v[8] != nil {
			t.Fired = time.UnixMilli(integer(v[8]))
		}
		out[i] = t
	}
	return out, nil
}

// Claim is a timer that was claimed: nobody else fires it before the lease
// is over.
type Claim struct {
	Ref
	Rev     int64
	Due     time.Time
	Attempt int       // 1 for the first of this life
	Unsure  bool      // an earlier attempt of this life may have been delivered
	Lapsed  bool      // an earlier claim of this life was not settled: its lease is over, or it was given back for it
	Fired   time.Time // when it was claimed, on Redis's clock
	Token   string
	Headers []byte
	Payload []byte

	// PublishBy is when half the lease is over on this process's clock: what
	// was not published by then must not be, for another may hold the claim.
	// The Firer sets it.
	PublishBy time.Time
}

// ClaimResult is the outcome of [Store.Claim].
type ClaimResult struct {
	Now      time.Time // Redis's clock
	Claims   []Claim
	Later    []Ref // due, but beyond the bytes that were allowed
	Repaired int   // inconsistent records mended or removed
}

// Claim claims those of the timers of partition p, at most [MaxBatch], that
// need attention now, until about maxBytes of payload are handed out (at
// least one timer is). With again it repeats a claim of the same token whose
// reply was lost, and gives what that one claimed.
func (s *Store) Claim(ctx context.Context, p int, lease time.Duration, token string, again bool, maxBytes int, refs []Ref) (ClaimResult, error) {
	keys := s.refKeys(p, refs)
	repeated := ""
	if again {
		repeated = "again"
	}
	args := append(make([]any, 0, 4+len(refs)), lease.Milliseconds(), token, max(maxBytes, 1), repeated)
	for _, r := range refs {
		args = append(args, r.Member())
	}
	out, err := s.run(ctx, scriptClaim, keys, args).Slice()
	if err != nil {
		return ClaimResult{}, writeError(err)
	}
	if len(out) != 2+len(refs) {
		return ClaimResult{}, fmt.Errorf("%w: claim answered %d values for %d timers", ErrUnconfirmed, len(out), len(refs))
	}
	res := ClaimResult{Now: time.UnixMicro(integer(out[0])), Repaired: int(integer(out[1]))}
	for i, r := range refs {
		v, ok := out[i+2].([]any)
		if !ok {
			if integer(out[i+2]) == 1 {
				res.Later = append(res.Later, r)
			}
			continue
		}
		if len(v) < 7 {
			continue
		}
		res.Claims = append(res.Claims, Claim{
			Ref: r, Token: token,
			Rev: integer(v[0]), Due: time.UnixMilli(integer(v[1])), Attempt: int(integer(v[2])),
			Unsure: integer(v[3]) > 0, Lapsed: integer(v[3]) == 2, Fired: time.UnixMilli(integer(v[4])),
			Payload: []byte(text(v[5])), Headers: []byte(text(v[6])),
		})
	}
	return res, nil
}

// Ack removes claimed timers of partition p, at most [MaxBatch], whose
// delivery was confirmed. Claims that are held no more are left alone. Safe to
// repeat.
func (s *Store) Ack(ctx context.Context, p int, claims []*Claim) error {
	keys := append(make([]string, 0, 2+len(claims)), s.keys.Due(p), s.keys.Tried(p))
	args := make([]any, 0, 2*len(claims))
	shadow := s.keys.ShadowPrefix(p)
	for _, c := range claims {
		member := c.Member()
		keys = append(keys, shadow+member)
		args = append(args, member, c.Token)
	}
	return writeError(s.run(ctx, scriptAck, keys, args).Err())
}

// Release is a claim that is given back.
type Release struct {
	*Claim
	Unknown bool          // the attempt may have been delivered
	After   time.Duration // until the next attempt, in whole milliseconds
}

// Release gives claims of partition p back, at most [MaxBatch]. Claims that
// are held no more are left alone. Safe to repeat.
func (s *Store) Release(ctx context.Context, p int, releases []Release) error {
	keys := append(make([]string, 0, 2+2*len(releases)), s.keys.Due(p), s.keys.Tried(p))
	args := make([]any, 0, 5*len(releases))
	trigger, shadow := s.keys.TriggerPrefix(p), s.keys.ShadowPrefix(p)
	for _, r := range releases {
		member, outcome := r.Member(), "refused"
		if r.Unknown {
			outcome = "unknown"
		}
		keys = append(keys, trigger+member, shadow+member)
		args = append(args, member, r.Rev, r.Token, outcome, r.After.Milliseconds())
	}
	return writeError(s.run(ctx, scriptRelease, keys, args).Err())
}

// DueScan is what a partition's backup set says of now.
type DueScan struct {
	Now     time.Time // Redis's clock, microseconds
	Next    time.Time // the first score in the future; zero when there is none
	Waiting int       // triggers touched that are still there: in their very millisecond
	Touched int       // due within the grace
	Oldest  time.Time // the oldest of these; zero when there are none
	Overdue []Ref     // due for longer than the grace, oldest first
	Strange []string  // members that are no timer's name
}

// Due looks at the backup set of partition p and touches the triggers of up
// to touch timers (at most 4,096) that became due within the grace; it names
// up to overdue timers that are later than that.
func (s *Store) Due(ctx context.Context, p int, grace time.Duration, touch, overdue int) (DueScan, error) {
	out, err := s.run(ctx, scriptDue, []string{s.keys.Due(p)},
		[]any{s.keys.TriggerPrefix(p), grace.Milliseconds(), touch, overdue}).Slice()
	if err != nil {
		return DueScan{}, err
	}
	if len(out) < 5 {
		return DueScan{}, fmt.Errorf("due answered %d values", len(out))
	}
	d := DueScan{
		Now:     time.UnixMicro(integer(out[0])),
		Next:    milli(integer(out[1])),
		Waiting: int(integer(out[2])),
		Touched: int(integer(out[3])),
		Oldest:  milli(integer(out[4])),
	}
	for _, m := range out[5:] {
		if r, ok := ParseMember(text(m)); ok {
			d.Overdue = append(d.Overdue, r)
		} else {
			d.Strange = append(d.Strange, text(m))
		}
	}
	return d, nil
}

// Discard removes members of the backup set that are no timer's name: nothing
// of ours writes such, and at the head of the set they would be met for ever.
func (s *Store) Discard(ctx context.Context, p int, members []string) error {
	list := make([]any, len(members))
	for i, m := range members {
		list[i] = m
	}
	return s.rdb.ZRem(ctx, s.keys.Due(p), list...).Err()
}

// Patrol looks at about n keys of Redis, from the cursor on ("0" is the
// beginning), for records of partition p that the backup set does not know of.
// It gives where to go on, "0" at the end, and how many it mended or removed.
// The cost of a step does not depend on how many keys there are.
func (s *Store) Patrol(ctx context.Context, p int, cursor string, n int) (next string, mended int, err error) {
	out, err := s.run(ctx, scriptPatrol, []string{s.keys.Due(p), s.keys.Dead(p)}, []any{s.keys.in(p, ""), cursor, n}).Slice()
	if err != nil {
		return cursor, 0, writeError(err)
	}
	if len(out) != 2 {
		return "0", 0, fmt.Errorf("patrol answered %d values", len(out))
	}
	return text(out[0]), int(integer(out[1])), nil
}

// Counts is what waits in all partitions, and what was given up on.
type Counts struct {
	Now     time.Time // Redis's clock
	Pending int64
	Overdue int64
	Next    time.Time // the first score in the future; zero when there is none
	Oldest  time.Time // the score that is overdue the longest; zero when there is none
	Dead    int64     // given up on
}

// Count counts what waits.
func (s *Store) Count(ctx context.Context) (Counts, error) {
	var c Counts
	for p := range s.keys.Partitions() {
		out, err := s.run(ctx, scriptStatus, []string{s.keys.Due(p), s.keys.Dead(p)}, nil).Slice()
		if err != nil {
			return Counts{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		c.Now = time.UnixMicro(integer(out[0]))
		c.Pending += integer(out[1])
		c.Overdue += integer(out[2])
		c.Dead += integer(out[4])
		if next := milli(integer(out[3])); c.Next.IsZero() || !next.IsZero() && next.Before(c.Next) {
			c.Next = next
		}
		if oldest := milli(integer(out[5])); c.Oldest.IsZero() || !oldest.IsZero() && oldest.Before(c.Oldest) {
			c.Oldest = oldest
		}
	}
	return c, nil
}

func (s *Store) refKeys(p int, refs []Ref) []string {
	return s.appendRefs(append(make([]string, 0, 3+2*len(refs)), s.keys.Due(p), s.keys.Tried(p)), p, refs)
}

func (s *Store) appendRefs(keys []string, p int, refs []Ref) []string {
	trigger, shadow := s.keys.TriggerPrefix(p), s.keys.ShadowPrefix(p)
	for _, r := range refs {
		member := r.Member()
		keys = append(keys, trigger+member, shadow+member)
	}
	return keys
}

// milli is a time of Unix milliseconds, zero for a negative number.
func milli(ms int64) time.Time {
	if ms < 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// The most digits of a number in a shadow hash, as lua/prelude.lua has them.
const dueDigits, revDigits = 14, 16

// isNumber says whether a value of a hash is a number as a script of ours writes
// it: what is not is no timer to any of them.
func isNumber(v any, digits int) bool {
	s := text(v)
	return s != "" && len(s) <= digits && strings.Trim(s, "0123456789") == ""
}

// integer and text read a value of a script's reply or of a hash; what is not
// one is 0 or "", as a foreign hand may have written anything.
func integer(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	return 0
}

func text(v any) string {
	s, _ := v.(string)
	return s
}
