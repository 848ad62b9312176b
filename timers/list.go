package timers

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Cursor is a place in a listing: after this timer. The zero value is the
// beginning.
type Cursor struct {
	Due    int64 // ms
	Member string
}

func (c Cursor) compare(d Cursor) int {
	if c.Due != d.Due {
		return int(max(-1, min(1, c.Due-d.Due)))
	}
	return strings.Compare(c.Member, d.Member)
}

// scanBudget is how many members of a partition one page looks at, so that a
// topic with few timers among many costs no more than others per page.
const scanBudget = 4000

// What [Store.List] can be narrowed to.
const (
	ListDead    = "dead"    // those that were given up on
	ListPending = "pending" // all others
)

// List gives up to limit timers after the cursor, soonest due first, of the
// topic and everything below it ("" for all), without payload and headers.
// which narrows it to [ListDead] or [ListPending]; "" is all. The second
// result is where to go on; more is false when nothing is beyond.
func (s *Store) List(ctx context.Context, topic, which string, after Cursor, limit int) (page []Timer, end Cursor, more bool, err error) {
	from := ""
	if after != (Cursor{}) {
		from = strconv.FormatInt(after.Due, 10)
	}
	end = Cursor{Due: math.MaxInt64}
	// Of all topics nearly every member is wanted, so few need be looked at.
	budget := scanBudget
	if topic == "" {
		budget = min(budget, 2*limit+64)
	}
	type placed struct {
		Timer
		at Cursor
	}
	var all []placed
	for p := range s.keys.Partitions() {
		out, err := s.run(ctx, scriptList, []string{s.keys.Due(p), s.keys.Tried(p), s.keys.Dead(p)},
			[]any{s.keys.ShadowPrefix(p), topic, from, after.Member, limit, budget, which}).Slice()
		if err != nil {
			return nil, Cursor{}, false, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		for v := out[2:]; len(v) >= 5; v = v[5:] {
			r, ok := ParseMember(text(v[1]))
			if !ok {
				continue
			}
			t := Timer{Ref: r, Due: time.UnixMilli(integer(v[0])), Rev: integer(v[2]), Attempts: int(integer(v[3])), State: Scheduled}
			if reason, dead := v[4].(string); dead {
				t.State, t.Reason = Dead, Reason(reason)
			} else if integer(v[4]) == 1 {
				t.State = Firing
			}
			all = append(all, placed{t, Cursor{integer(v[0]), text(v[1])}})
		}
		if integer(out[0]) >= 0 {
			more = true
			// Beyond the shortest reach another partition may have sooner ones.
			if c := (Cursor{integer(out[0]), text(out[1])}); c.compare(end) < 0 {
				end = c
			}
		}
	}
	slices.SortFunc(all, func(a, b placed) int { return a.at.compare(b.at) })
	for i, t := range all {
		if t.at.compare(end) > 0 {
			break
		}
		if len(page) == limit {
			return page, all[i-1].at, true, nil
		}
		page = append(page, t.Timer)
	}
	return page, end, more, nil
}
