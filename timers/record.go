package timers

import (
	"context"
	"errors"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// Record is what the deployment says of itself under <prefix>:meta. The zero
// value is a deployment whose first instance has not started yet.
type Record struct {
	Version    string // of the data; this release reads [DataVersion]
	Partitions string
	Deployment string
}

// Record reads the deployment's record and changes nothing, unlike [Store.Open].
func (s *Store) Record(ctx context.Context) (Record, error) {
	m, err := s.rdb.HGetAll(ctx, s.keys.Meta()).Result()
	return Record{Version: m["version"], Partitions: m["partitions"], Deployment: m["deployment"]}, err
}

// Fits says whether an instance with the store's number of partitions can work
// with the record, and if not, which of the two differs.
func (s *Store) Fits(r Record) (version, partitions bool) {
	return r.Version == "" || r.Version == strconv.Itoa(DataVersion),
		r.Partitions == "" || r.Partitions == strconv.Itoa(s.keys.Partitions())
}

// MissesRight says whether Redis refused for want of a right, also from inside a
// script.
func MissesRight(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) && (replyIs(reply, "NOPERM") || missesRight(reply.Error()))
}

// LastingRefusal is what Redis answered when that does not pass by itself: a
// right is missing, or a key of Lapse's is of a foreign type. It is "" for any
// other error, and for none.
func LastingRefusal(err error) string {
	var reply redis.Error
	if errors.As(err, &reply) && (MissesRight(err) || replyIs(reply, "WRONGTYPE")) {
		return reply.Error()
	}
	return ""
}

// Answered says whether err is an error answer of Redis, and no lost connection.
func Answered(err error) bool { return answered(err) && !errors.Is(err, redis.Nil) }

// Strays is what a look at some records of a partition found. Each list holds
// the first few, the numbers are of all that were looked at.
type Strays struct {
	Looked    int      // records that were looked at
	Shadows   []string // keys: a timer that the backup set does not know of, so that nothing fires it
	Triggers  []string // keys: a trigger of no timer, without a TTL
	Immortal  []string // keys: a trigger that lost its TTL, so that its event never comes
	Due       []int64  // of Immortal: the score in the backup set, Unix milliseconds
	Members   []string // members of the backup set that have no shadow
	NShadows  int
	NTriggers int
	NImmortal int
	NMembers  int
}

// add adds what another page found; most bounds the lists.
func (s *Strays) add(o Strays, most int) {
	s.Looked += o.Looked
	s.NShadows, s.NTriggers = s.NShadows+o.NShadows, s.NTriggers+o.NTriggers
	s.NImmortal, s.NMembers = s.NImmortal+o.NImmortal, s.NMembers+o.NMembers
	s.Shadows = append(s.Shadows, o.Shadows...)
	s.Triggers = append(s.Triggers, o.Triggers...)
	s.Immortal = append(s.Immortal, o.Immortal...)
	s.Due = append(s.Due, o.Due...)
	s.Members = append(s.Members, o.Members...)
	for _, list := range []*[]string{&s.Shadows, &s.Triggers, &s.Immortal, &s.Members} {
		*list = (*list)[:min(len(*list), most)]
	}
	s.Due = s.Due[:min(len(s.Due), most)]
}

// strayPage is about how many keys of Redis one step of Strays looks at.
const strayPage = 500

// Strays looks at about n keys of Redis for each partition, at least one page,
// for records that do not fit together, and changes nothing; [Store.Patrol]
// mends. all says that it has seen every key there is. most bounds the lists.
func (s *Store) Strays(ctx context.Context, n, most int) (found Strays, all bool, err error) {
	all = true
	for p := range s.keys.Partitions() {
		cursor, looked := "0", 0
		for {
			out, err := s.run(ctx, scriptStrays, []string{s.keys.Due(p), s.keys.Dead(p)},
				[]any{s.keys.in(p, ""), cursor, strayPage, most}).Slice()
			if err != nil {
				return found, false, err
			}
			if len(out) != 11 {
				return found, false, errors.New("strays answered something else")
			}
			page := Strays{
				Looked: int(integer(out[1])), NShadows: int(integer(out[2])), NTriggers: int(integer(out[3])),
				NImmortal: int(integer(out[4])), NMembers: int(integer(out[5])),
				Shadows: texts(out[6]), Triggers: texts(out[7]), Immortal: texts(out[8]), Members: texts(out[10]),
			}
			for _, v := range texts(out[9]) {
				page.Due = append(page.Due, integer(v))
			}
			found.add(page, most)
			looked += strayPage
			if cursor = text(out[0]); cursor == "0" || looked >= n {
				break
			}
		}
		all = all && cursor == "0"
	}
	return found, all, nil
}

// Late is what a look at the head of the backup set found.
type Late struct {
	Head     string // member of the oldest score, "" when nothing is there
	Age      int64  // how long that score is over, in milliseconds; negative when it is to come
	Lapsed   int    // of the first 100 whose time has come: claimed, and the lease is over
	Instance string // that holds one of these
}

// Late looks at the head of each partition's backup set and changes nothing.
func (s *Store) Late(ctx context.Context) (Late, error) {
	late := Late{Age: -1}
	for p := range s.keys.Partitions() {
		out, err := s.run(ctx, scriptLate, []string{s.keys.Due(p)}, []any{s.keys.ShadowPrefix(p), 100}).Slice()
		if err != nil {
			return Late{}, err
		}
		if len(out) != 4 {
			return Late{}, errors.New("late answered something else")
		}
		if age := integer(out[1]); text(out[0]) != "" && (late.Head == "" || age > late.Age) {
			late.Head, late.Age = text(out[0]), age
		}
		if late.Lapsed += int(integer(out[2])); late.Instance == "" {
			late.Instance = text(out[3])
		}
	}
	return late, nil
}

// OldestDead is the name of the dead timer that was due first, of any
// partition; ok is false when there is none.
func (s *Store) OldestDead(ctx context.Context) (r Ref, ok bool, err error) {
	for p := range s.keys.Partitions() {
		first, err := s.rdb.ZRange(ctx, s.keys.Dead(p), 0, 0).Result()
		if err != nil {
			return Ref{}, false, err
		}
		for _, m := range first {
			if r, ok := ParseMember(m); ok {
				return r, true, nil
			}
		}
	}
	return Ref{}, false, nil
}

func texts(v any) []string {
	list, _ := v.([]any)
	out := make([]string, 0, len(list))
	for _, e := range list {
		if s, ok := e.(string); ok {
			out = append(out, s)
		}
	}
	return out
}
