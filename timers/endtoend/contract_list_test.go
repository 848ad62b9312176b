package endtoend

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
)

// setAll sends sets without waiting for each, and awaits all their replies.
func (s *served) setAll(t *testing.T, sets []*nats.Msg) {
	t.Helper()
	inbox := s.nc.NewInbox()
	replies, err := s.nc.SubscribeSync(inbox)
	require.NoError(t, err)
	require.NoError(t, replies.SetPendingLimits(-1, -1))
	defer replies.Unsubscribe() //nolint:errcheck // the connection closes with the test
	for _, m := range sets {
		m.Reply = inbox
		require.NoError(t, s.nc.PublishMsg(m))
	}
	for range sets {
		m := next(t, replies)
		require.Empty(t, m.Header.Get("Nats-Service-Error"))
	}
}

// listAll follows the cursors from page to page.
func (s *served) listAll(t *testing.T, subject string, limit int) (items []listItem, pages int) {
	t.Helper()
	cursor := ""
	for {
		page := s.list(t, subject, fmt.Sprintf(`{"limit":%d,"cursor":%q}`, limit, cursor))
		pages++
		require.LessOrEqual(t, len(page.Timers), limit)
		items = append(items, page.Timers...)
		if page.Cursor == "" {
			return items, pages
		}
		require.NotEqual(t, cursor, page.Cursor, "the listing does not move on")
		cursor = page.Cursor
	}
}

func TestListOrderAndTopics(t *testing.T) {
	t.Parallel()
	for _, partitions := range []string{"1", "4"} {
		t.Run(partitions+" partitions", func(t *testing.T) {
			s := serve(t, timerstest.NATS(t), "LAPSE_PARTITIONS="+partitions)
			page := s.list(t, "timers.list", "")
			require.Empty(t, page.Cursor)
			require.NotNil(t, page.Timers, "an empty list is [], not null")

			// Shuffled on purpose; equal due times are ordered by name.
			at := func(n int) string { return fmt.Sprintf("@at 2099-01-01T00:00:00.%03dZ", n) }
			for _, v := range []struct {
				topic, id string
				due       int
			}{
				{"a.b", "2", 5}, {"a", "9", 1}, {"ab", "1", 3}, {"a", "1", 5}, {"a.b.c", "1", 2}, {"a-b", "1", 4}, {"A", "1", 0}, {"a.b", "1", 5}, {"a", "\u00e9", 5}, {"a", "Z", 5}, {"b.a", "1", 6}, {"aa.a", "1", 7},
			} {
				s.set(t, request("timers.set."+v.topic, v.id, at(v.due)))
			}
			all := []string{"A 1", "a 9", "a.b.c 1", "ab 1", "a-b 1", "a.b 1", "a.b 2", "a 1", "a Z", "a \u00e9", "b.a 1", "aa.a 1"}
			for subject, want := range map[string][]string{
				"timers.list": all, "timers.list.a": {"a 9", "a.b.c 1", "a.b 1", "a.b 2", "a 1", "a Z", "a \u00e9"}, "timers.list.a.b": {"a.b.c 1", "a.b 1", "a.b 2"},
				"timers.list.a.b.c": {"a.b.c 1"}, "timers.list.ab": {"ab 1"}, "timers.list.A": {"A 1"}, "timers.list.b": {"b.a 1"}, "timers.list.a.b.c.d": {}, "timers.list.none": {},
			} {
				for _, limit := range []int{1, 2, 7, 1000} {
					items, _ := s.listAll(t, subject, limit)
					require.Equal(t, want, names(items), "%s by %d", subject, limit)
				}
				require.Equal(t, want, names(s.list(t, subject, "").Timers))
			}
			item := s.list(t, "timers.list", `{"limit":1}`).Timers[0]
			got := s.ok(t, about("timers.get.A", "1"))
			require.Equal(t, "2099-01-01T00:00:00.000Z", item.Due.Format("2006-01-02T15:04:05.000Z"))
			require.Equal(t, got.Header.Get("Timer-Rev"), fmt.Sprint(item.Rev))
			require.Equal(t, "scheduled", item.State)
			require.Zero(t, item.Attempts)
			timerstest.CheckInvariants(t, s.rdb, "timers")
		})
	}
}

func TestListRequestsRefused(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	s.set(t, request("timers.set.a", "x", "@in 1h"))
	b64 := func(v string) string { return base64.RawURLEncoding.EncodeToString([]byte(v)) }
	for body, says := range map[string]string{
		`{"limit":0}`: "limit 0", `{"limit":-1}`: "limit -1", `{"limit":1001}`: "limit 1001", `{"limit":9223372036854775807}`: "1 to 1000", `{"limit":9223372036854775808}`: "limit",
		`{"limit":1.5}`: "limit", `{"limit":1e2}`: "limit", `{"limit":"5"}`: "limit", `{"limit":true}`: "limit", `{"limit":[5]}`: "limit", `{"limit":{}}`: "limit", `{"limit":NaN}`: "JSON",
		`{"foo":1}`: `foo`, `{"limit":5,"topic":"a"}`: `topic`, `{"limits":5}`: `limits`, `{"":1}`: "unknown", `{"state":"firing"}`: `"firing"`, `{"state":5}`: "state",
		`{`: "JSON", `}`: "JSON", `{}}`: "JSON", `{} x`: "JSON", `{}{}`: "JSON", `{"limit":5}{"limit":6}`: "JSON", `{},`: "JSON", `{"limit":5,}`: "JSON", `{limit:5}`: "JSON", `{'limit':5}`: "JSON",
		`[]`: "JSON", `[{"limit":5}]`: "JSON", `5`: "JSON", `"x"`: "JSON", `true`: "JSON", `hello`: "JSON", "\x00": "JSON", "\xff\xfe": "JSON", "{\"limit\":5}\x00": "JSON", `// comment`: "JSON",
		strings.Repeat("[", 100_000): "JSON", `{"cursor":"` + strings.Repeat("A", 100_000) + `"}`: "cursor",
		`{"cursor":5}`: "cursor", `{"cursor":["a"]}`: "cursor", `{"cursor":"x"}`: `"x"`, `{"cursor":"!!!"}`: `"!!!"`, `{"cursor":" "}`: `" "`, `{"cursor":"\u0000"}`: `"\x00"`, `{"cursor":"é"}`: `"\u00e9"`,
		`{"cursor":"` + b64("abc") + `"}`: "cursor", `{"cursor":"` + b64("123") + `"}`: "cursor", `{"cursor":"` + b64("-1 a:x") + `"}`: "cursor", `{"cursor":"` + b64("x a:x") + `"}`: "cursor",
		`{"cursor":"` + b64(" a:x") + `"}`: "cursor", `{"cursor":"` + b64("1.5 a:x") + `"}`: "cursor", `{"cursor":"` + b64("9223372036854775808 a:x") + `"}`: "cursor", `{"cursor":"` + b64("+inf a:x") + `"}`: "cursor",
		`{"cursor":"` + b64("nan a:x") + `"}`: "cursor", `{"cursor":"` + b64("1 "+strings.Repeat("x", 5000)) + `"}`: "cursor", `{"cursor":"` + base64.StdEncoding.EncodeToString([]byte("1 a:x??")) + `"}`: "cursor",
	} {
		t.Run(fmt.Sprintf("%.40q", body), func(t *testing.T) {
			s.refused(t, about("timers.list", body), 400, "invalid_request", says)
			s.refused(t, about("timers.list.a", body), 400, "invalid_request", says)
		})
	}
	for _, body := range []string{"", " ", "\n", "{}", " { } \n", "null", `{"limit":1}`, `{"limit":1000}`, `{"cursor":""}`, `{"limit":null}`, `{"limit":5,"cursor":""}`, `{"state":"pending"}`, `{"state":""}`, `{"cursor":"` + b64("0 ") + `"}`, `{"cursor":"` + b64("1 any:thing") + `"}`} {
		require.Equal(t, []string{"a x"}, names(s.list(t, "timers.list", body).Timers), body)
	}
	require.Empty(t, s.list(t, "timers.list", `{"state":"dead"}`).Timers)
	// Cursors of somebody's own making lead nowhere bad.
	for _, place := range []string{"9223372036854775807 a:x", "9007199254740993 \xff\x00", "4102444800000 ", "4102444800000 no colon"} {
		require.Empty(t, s.list(t, "timers.list", `{"cursor":"`+b64(place)+`"}`).Timers, place)
	}
	s.unharmed(t)
}

func TestListOfManyTimers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n, partitions int
		maxPayload    int32
	}{{5000, 1, 16384}, {600, 3, 4096}} {
		t.Run(fmt.Sprintf("%d over %d partitions", c.n, c.partitions), func(t *testing.T) {
			n := c.n
			s := serve(t, timerstest.NATS(t, maxPayload(c.maxPayload)), fmt.Sprint("LAPSE_PARTITIONS=", c.partitions))
			sets := make([]*nats.Msg, n)
			start := time.Now().Add(time.Hour).UTC()
			for i := range sets {
				// Every due time twice, and one in 50 of another topic.
				topic := "many"
				if i%50 == 0 {
					topic = "few.of"
				}
				sets[i] = request("timers.set."+topic, fmt.Sprintf("timer-%04d", i), "@at "+start.Add(time.Duration(i*7919%n/2)*time.Millisecond).Format("2006-01-02T15:04:05.000Z"))
			}
			s.setAll(t, sets)
			check := func(items []listItem, n int) {
				t.Helper()
				require.Len(t, items, n)
				order := func(a, b listItem) int {
					return cmp.Or(a.Due.Compare(b.Due), strings.Compare(a.Topic+":"+a.ID, b.Topic+":"+b.ID))
				}
				require.True(t, slices.IsSortedFunc(items, order))
				require.Len(t, slices.CompactFunc(slices.Clone(items), func(a, b listItem) bool { return a.ID == b.ID }), n, "one is there twice")
			}
			// Pages are cut to what fits into a message.
			items, pages := s.listAll(t, "timers.list", 1000)
			check(items, n)
			fits := int(c.maxPayload) / 125 // about the length of an item
			require.Greater(t, pages, n/fits)
			require.Less(t, pages, 2*n/fits)
			items, pages = s.listAll(t, "timers.list.few", 7)
			check(items, n/50)
			require.Less(t, pages, n/50+1)
			items, pages = s.listAll(t, "timers.list.few", 1)
			check(items, n/50)
			require.LessOrEqual(t, pages, n/50+n/1000+1)
			items, _ = s.listAll(t, "timers.list.none", 1000)
			require.Empty(t, items)
			require.Len(t, s.list(t, "timers.list", `{"limit":7}`).Timers, 7)
		})
	}
}

// A timer that is cancelled between two pages takes no other with it, not even
// when it was the last of its page.
func TestListWhileTimersVanish(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	at := func(i int) string { return fmt.Sprintf("@at 2099-01-01T00:00:%02dZ", i/2) } // two at a time
	for i := range 60 {
		s.set(t, request("timers.set.v", fmt.Sprintf("%02d", i), at(i)))
	}
	var got []string
	cursor := ""
	for done := false; !done; done = cursor == "" {
		page := s.list(t, "timers.list.v", fmt.Sprintf(`{"limit":7,"cursor":%q}`, cursor))
		cursor = page.Cursor
		got = append(got, names(page.Timers)...)
		if n := len(page.Timers); n > 1 {
			s.ok(t, about("timers.cancel.v", page.Timers[n-1].ID))
			s.ok(t, about("timers.cancel.v", page.Timers[0].ID))
		}
		// One that comes before the cursor is not seen, and moves nothing.
		s.set(t, request("timers.set.v", "early "+fmt.Sprint(len(got)), "@at 2098-01-01T00:00:00Z"))
	}
	want := make([]string, 60)
	for i := range want {
		want[i] = fmt.Sprintf("v %02d", i)
	}
	require.Equal(t, want, got)
	timerstest.CheckInvariants(t, s.rdb, "timers")
}

// Where a reply does not fit, the answer says so.
func TestRepliesThatCannotFit(t *testing.T) {
	t.Parallel()
	topic, id := strings.Repeat("t", 128), "x"+strings.Repeat("\u2028", 84)+"x" // six bytes each in JSON
	for _, c := range []struct {
		maxPayload int32
		fits       bool // the reply to the set
	}{{760, true}, {720, false}} {
		s := serve(t, timerstest.NATS(t, maxPayload(c.maxPayload)), "LAPSE_DELIVERY=core")
		m := request("timers.set."+topic, id, "@in 1h")
		m.Data = nil
		if c.fits {
			s.set(t, m)
		} else {
			isRefusal(t, s.ask(t, m), 504, "unconfirmed", "carried out", "max_payload", "720")
		}
		isRefusal(t, s.ask(t, about("timers.list", "")), 413, "too_large", "max_payload")
		require.Equal(t, id, s.ok(t, about("timers.get."+topic, id)).Header.Get("Timer-Id"))
		s.ok(t, about("timers.cancel."+topic, id))
		s.unharmed(t)
	}
}
