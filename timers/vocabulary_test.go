package timers

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestTopicGrammar(t *testing.T) {
	t.Parallel()
	for _, ok := range []string{"a", "orders.close", "A-1_b.c", strings.Repeat("a", 128), strings.Repeat("a.", 15) + "a"} {
		require.NoError(t, CheckTopic(ok), ok)
	}
	for _, bad := range []string{"", ".", "a.", ".a", "a..b", "a b", "a\tb", "*", ">", "a.*", "a.>", "a*b", "a:b", "é", "a\r\nb", "a\x00",
		strings.Repeat("a", 129), strings.Repeat("a.", 16) + "a"} {
		var inv *Invalid
		require.ErrorAs(t, CheckTopic(bad), &inv, bad)
		require.Equal(t, "topic", inv.What)
	}
}

func TestIDGrammar(t *testing.T) {
	t.Parallel()
	for _, ok := range []string{"x", ":", "a:b", "{", "}", "{}", "}{", "a{b}c", "{a}{b}", "a b", "a/b", "⏰", "order-42", strings.Repeat("x", 256)} {
		require.NoError(t, CheckID(ok), ok)
	}
	for _, bad := range []string{"", " ", " a", "a ", "a\n", "\ta", "a\x00b", "a\x7f", "a\u0085b", "\u00a0a", "a\xff", strings.Repeat("x", 257)} {
		var inv *Invalid
		require.ErrorAs(t, CheckID(bad), &inv, "%q", bad)
		require.Equal(t, "id", inv.What)
	}
}

func TestScheduleGrammar(t *testing.T) {
	t.Parallel()
	ms := func(s string) int64 {
		v, err := time.Parse(time.RFC3339Nano, s)
		require.NoError(t, err)
		return v.UnixMilli()
	}
	for in, want := range map[string]When{
		"@in 0s":                              {In: 0},
		"@in 0":                               {In: 0},
		"@in 5s":                              {In: 5 * time.Second},
		"@in +5s":                             {In: 5 * time.Second},
		"@in 1h30m":                           {In: 90 * time.Minute},
		"@in 0.4ms":                           {In: 400 * time.Microsecond},
		"@in 876600h":                         {In: MaxDelay},
		"@at 2027-01-31T09:00:00Z":            {In: -1, At: ms("2027-01-31T09:00:00Z")},
		"@at 2027-01-31t09:00:00z":            {In: -1, At: ms("2027-01-31T09:00:00Z")},
		"@at 2027-01-31T09:00:00+05:30":       {In: -1, At: ms("2027-01-31T03:30:00Z")},
		"@at 2027-01-31T09:00:00-00:00":       {In: -1, At: ms("2027-01-31T09:00:00Z")},
		"@at 2027-01-31T09:00:00.5Z":          {In: -1, At: ms("2027-01-31T09:00:00.5Z")},
		"@at 2027-01-31T09:00:00.123000Z":     {In: -1, At: ms("2027-01-31T09:00:00.123Z")},
		"@at 2027-01-31T09:00:00.1230001Z":    {In: -1, At: ms("2027-01-31T09:00:00.124Z")},
		"@at 2027-01-31T09:00:00.9990000001Z": {In: -1, At: ms("2027-01-31T09:00:01Z")},
		"@at 1969-12-31T23:59:59.9Z":          {In: -1, At: -100},
		"@at 9999-12-31T23:59:59Z":            {In: -1, At: ms("9999-12-31T23:59:59Z")},
	} {
		got, err := ParseSchedule(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
	for _, bad := range []string{"", " ", "5s", "@in", "@in ", "@in -1s", "@in -5", "@in 5", "@in \"5\"", "@in 1e3", "@in 1e3s", "@in NaN", "@in 00005", "@in 5 s",
		"@in 9223372036854775807", "@in 9223372036854775807ms", "@in 9223372036854775ms", "@in 18446744073709551616ns", "@in 1e300s", "@in 876601h", "@in 876600h1ns",
		"@at", "@at now", "@at 2027-01-31", "@at 2027-01-31T09:00:00", "@at 2027-01-31 09:00:00Z", "@at 2027-01-31T09:00:00.Z", "@at 2027-01-31T09:00:00,5Z",
		"@at 2027-13-01T00:00:00Z", "@at 2027-02-30T00:00:00Z", "@at 2027-01-31T24:00:00Z", "@at 2027-01-31T23:59:60Z", "@at 2027-01-31T9:00:00Z",
		"@at 2027-01-31T09:00:00+25:00", "@at 2027-01-31T09:00:00+0530", "@at 2027-01-31T09:00:00Z ", "@AT 2027-01-31T09:00:00Z", "in 5s", "@at\t2027-01-31T09:00:00Z"} {
		var inv *Invalid
		_, err := ParseSchedule(bad)
		require.ErrorAs(t, err, &inv, "%q", bad)
		require.Equal(t, "schedule", inv.What)
		require.NotEmpty(t, inv.Rule)
	}
	for _, recurring := range []string{"@every 5s", "@daily", "@hourly", "@midnight", "@yearly", "0 0 9 * * *", "0 0 9 * * MON-FRI"} {
		_, err := ParseSchedule(recurring)
		require.ErrorContains(t, err, "not in this version", recurring)
	}
}

func FuzzSchedule(f *testing.F) {
	for _, s := range []string{"@in 5s", "@at 2027-01-31T09:00:00.1230001+05:30", "@at 0000-01-01T00:00:00Z", "@every 1s", "@in -1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		w, err := ParseSchedule(s)
		var inv *Invalid
		if err != nil {
			if !errors.As(err, &inv) {
				t.Fatalf("%q: %v is no *Invalid", s, err)
			}
			return
		}
		if w.In > MaxDelay || w.In < -1 {
			t.Fatalf("%q: in %v", s, w.In)
		}
		if w.In == -1 {
			// Never earlier than asked for, and less than a millisecond later.
			at, err := time.Parse(time.RFC3339Nano, strings.ToUpper(strings.TrimSpace(s[len("@at "):])))
			if err == nil {
				if d := time.UnixMilli(w.At).Sub(at); d < 0 || d > time.Millisecond {
					t.Fatalf("%q: %v off", s, d)
				}
			}
		}
	})
}

func FuzzMember(f *testing.F) {
	f.Add("orders", "a:b")
	f.Add("a.b", "{}")
	f.Fuzz(func(t *testing.T, topic, id string) {
		r := Ref{topic, id}
		valid := CheckTopic(topic) == nil && CheckID(id) == nil
		got, ok := ParseMember(r.Member())
		if valid && (!ok || got != r) {
			t.Fatalf("%q became %v %v", r, got, ok)
		}
		if ok && (CheckTopic(got.Topic) != nil || CheckID(got.ID) != nil || !utf8.ValidString(got.ID)) {
			t.Fatalf("%q gave an invalid %q", r.Member(), got)
		}
		for _, n := range []int{1, 7} {
			k, err := NewKeys("timers", n)
			if err != nil {
				t.Fatal(err)
			}
			if valid {
				if got, ok := k.ParseTrigger(k.Trigger(r)); !ok || got != r {
					t.Fatalf("trigger of %q gave %q %v", r, got, ok)
				}
			}
			k.ParseTrigger(topic + ":" + id)
		}
	})
}

func TestKeysArePartOfTheContract(t *testing.T) {
	t.Parallel()
	k, err := NewKeys("timers", 1)
	require.NoError(t, err)
	r := Ref{"orders.close", "a:b"}
	require.Equal(t, "timers:{0}:t:orders.close:a:b", k.Trigger(r))
	require.Equal(t, "timers:{0}:h:orders.close:a:b", k.Shadow(r))
	require.Equal(t, "timers:{0}:due", k.Due(0))
	require.Equal(t, "timers:{0}:dead", k.Dead(0))
	require.Equal(t, "timers:{0}:rev", k.Rev(0))
	require.Equal(t, "timers:meta", k.Meta())
	require.Equal(t, "timers:{crew}:probe:a1", k.EventProbe("a1"))
	instance, ok := k.ParseEventProbe(k.EventProbe("a1"))
	require.True(t, ok)
	require.Equal(t, "a1", instance)
	for _, key := range []string{"", "timers:{crew}:probe:", "timers:{crew}:probe", "timers:{0}:probe:a1", "times:{crew}:probe:a1", k.Trigger(r)} {
		_, ok := k.ParseEventProbe(key)
		require.False(t, ok, key)
	}
	_, ok = k.ParseTrigger(k.EventProbe("a1"))
	require.False(t, ok)
	require.Equal(t, "__keyevent@5__:expired", ExpiredChannel(5))
}

// A timer stays in its partition for as long as its data live, over releases.
func TestPartitionsAreStable(t *testing.T) {
	t.Parallel()
	k, err := NewKeys("timers", 16)
	require.NoError(t, err)
	got := map[string]int{}
	for _, id := range []string{"order-42", "a:b", "{}", "⏰"} {
		got[id] = k.Partition(Ref{"orders.close", id})
	}
	require.Equal(t, map[string]int{"order-42": 15, "a:b": 5, "{}": 5, "⏰": 3}, got)
}

func TestPartitionsSpreadOverSlots(t *testing.T) {
	t.Parallel()
	// The example of the Cluster specification.
	require.Equal(t, 0x31C3, Slot("123456789"))
	for _, n := range []int{1, 2, 3, 16, 100, 256} {
		tags := partitionTags(n)
		for i, tag := range tags {
			require.Equal(t, i, Slot(tag)*n/slots, "tag %s of %d partitions", tag, n)
		}
	}
	require.Equal(t, []string{"0"}, partitionTags(1))
}

func TestForeignKeysAreNoTriggers(t *testing.T) {
	t.Parallel()
	k, err := NewKeys("timers", 4)
	require.NoError(t, err)
	mine := k.Trigger(Ref{"a", "b"})
	_, ok := k.ParseTrigger(mine)
	require.True(t, ok)
	other := strings.Replace(mine, "{"+k.tags[k.Partition(Ref{"a", "b"})]+"}", "{x}", 1)
	for _, key := range []string{"", "x", ":::", "timers", "timers:", "timers:{", "timers:{0}:t:", "timers:{0}:t:a", "timers:{0}:t::b", "timers:{0}:h:a:b", other,
		"timers2:{0}:t:a:b", strings.Repeat("x", 10_000), "timers:{0}:t:a:\xff", "timers:meta", "timers:{0}:t:a b:c"} {
		_, ok := k.ParseTrigger(key)
		require.False(t, ok, key)
	}
}
