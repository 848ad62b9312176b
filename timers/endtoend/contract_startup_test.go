package endtoend

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
)

// refusesToStart runs an instance that must end by itself, and returns the one
// line that it leaves beside its log.
func refusesToStart(t *testing.T, redisURL, natsURL string, settings ...string) string {
	t.Helper()
	l := timerstest.Lapse(t, append([]string{"LAPSE_REDIS_URL=" + redisURL, "LAPSE_NATS_URL=" + natsURL}, settings...)...)
	l.Launch()
	timerstest.Eventually(t, 20*time.Second, "it ends or says that it is ready", func() bool {
		return strings.Contains(l.Log(), `"msg":"ready"`) || strings.Contains(l.Log(), "\nlapse: ")
	})
	require.NotContains(t, l.Log(), `"msg":"ready"`, "it starts")
	require.Equal(t, 1, l.Wait(), "its exit code")
	var said []string
	for line := range strings.Lines(l.Log()) {
		if !json.Valid([]byte(line)) {
			said = append(said, strings.TrimSpace(line))
		}
	}
	require.Len(t, said, 1, "one line for people")
	require.Regexp(t, `^lapse: `, said[0])
	require.NotContains(t, l.Log(), "waiting", "it waited for what waiting does not mend")
	return said[0]
}

func TestStreamsThatAreInTheWay(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	js, err := jetstream.New(ns.Connect(t))
	require.NoError(t, err)
	for _, c := range []struct {
		name    string
		streams []jetstream.StreamConfig
		sealed  bool
		says    []string
		core    bool // in the way of core delivery too
	}{
		{"over everything", []jetstream.StreamConfig{{Name: "ALL", Subjects: []string{"timers.>"}}}, false, []string{"stream ALL", "timers.>", "would answer the requests", "narrow its subjects", "LAPSE_PREFIX"}, true},
		{"over every verb", []jetstream.StreamConfig{{Name: "WILD", Subjects: []string{"timers.*.orders"}}}, false, []string{"stream WILD", "timers.*.orders", "would answer"}, true},
		{"over one request", []jetstream.StreamConfig{{Name: "SETS", Subjects: []string{"timers.set.orders"}}}, false, []string{"stream SETS", "timers.set.orders", "timers.set.>"}, true},
		{"over set without topic", []jetstream.StreamConfig{{Name: "BARE", Subjects: []string{"timers.set"}}}, false, []string{"stream BARE", "timers.set"}, true},
		{"over gets", []jetstream.StreamConfig{{Name: "GETS", Subjects: []string{"timers.get.>"}}}, false, []string{"stream GETS"}, true},
		{"over cancels", []jetstream.StreamConfig{{Name: "CANCELS", Subjects: []string{"timers.cancel.*"}}}, false, []string{"stream CANCELS"}, true},
		{"over retries", []jetstream.StreamConfig{{Name: "RETRIES", Subjects: []string{"timers.retry.>"}}}, false, []string{"stream RETRIES"}, true},
		{"over lists", []jetstream.StreamConfig{{Name: "LISTS", Subjects: []string{"timers.list"}}}, false, []string{"stream LISTS"}, true},
		{"over the status", []jetstream.StreamConfig{{Name: "STATUS", Subjects: []string{"timers.*", "elsewhere"}}}, false, []string{"stream STATUS"}, true},
		{"over requests beside a good one", []jetstream.StreamConfig{{Name: "TIMERS", Subjects: []string{"timers.fired.>"}}, {Name: "SETS", Subjects: []string{"timers.set.>"}}}, false, []string{"stream SETS"}, true},

		{"over a part", []jetstream.StreamConfig{{Name: "PART", Subjects: []string{"timers.fired.orders.>"}}}, false, []string{"stream PART", "timers.fired.orders.>", "part of timers.fired.>", "whole", "TIMERS"}, false},
		{"over one topic", []jetstream.StreamConfig{{Name: "ONE", Subjects: []string{"timers.fired.orders"}}}, false, []string{"stream ONE", "part of"}, false},
		{"over topics of one token", []jetstream.StreamConfig{{Name: "FLAT", Subjects: []string{"timers.fired.*"}}}, false, []string{"stream FLAT", "part of"}, false},
		{"over a part each", []jetstream.StreamConfig{{Name: "A", Subjects: []string{"timers.fired.a.>"}}, {Name: "B", Subjects: []string{"timers.fired.b.>"}}}, false, []string{"stream ", "part of"}, false},
		{"sealed", []jetstream.StreamConfig{{Name: "SEALED", Subjects: []string{"timers.fired.>"}}}, true, []string{"stream SEALED", "sealed"}, false},
		{"no acknowledgements", []jetstream.StreamConfig{{Name: "NOACK", Subjects: []string{"timers.fired.>"}, NoAck: true}}, false, []string{"stream NOACK", "no_ack"}, false},
		{"over everything, no acknowledgements", []jetstream.StreamConfig{{Name: "NOACKS", Subjects: []string{"timers.>"}, NoAck: true}}, false, []string{"stream NOACKS", "no_ack"}, false},
		{"a mirror of the name", []jetstream.StreamConfig{{Name: "ORIGIN", Subjects: []string{"origin.>"}}, {Name: "TIMERS", Mirror: &jetstream.StreamSource{Name: "ORIGIN"}}}, false, []string{"stream TIMERS", "is a mirror", "LAPSE_STREAM"}, false},
		{"a stream of the name that only has sources", []jetstream.StreamConfig{{Name: "ORIGIN", Subjects: []string{"origin.>"}}, {Name: "TIMERS", Sources: []*jetstream.StreamSource{{Name: "ORIGIN"}}}}, false, []string{"stream TIMERS", "no subjects", "LAPSE_STREAM"}, false},
		{"a stream of the name for something else", []jetstream.StreamConfig{{Name: "TIMERS", Subjects: []string{"egg.timers"}}}, false, []string{"stream TIMERS", "egg.timers", "LAPSE_STREAM"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, config := range c.streams {
				config.Storage = jetstream.MemoryStorage
				_, err := js.CreateStream(t.Context(), config)
				require.NoError(t, err)
				t.Cleanup(func() { js.DeleteStream(context.Background(), config.Name) }) //nolint:errcheck // the next one tells
				if c.sealed {
					config.Sealed = true
					_, err = js.UpdateStream(t.Context(), config)
					require.NoError(t, err)
				}
			}
			before := configs(t, js)
			line := refusesToStart(t, rs.URL(), ns.URL())
			for _, text := range c.says {
				require.Contains(t, line, text)
			}
			if c.core {
				// Its answer to a set is no less false when delivery needs no stream.
				require.Contains(t, refusesToStart(t, rs.URL(), ns.URL(), "LAPSE_DELIVERY=core"), "would answer the requests")
			}
			require.Equal(t, before, configs(t, js), "a stream was altered or made")
		})
	}
}

// configs are the configurations of all streams, by name.
func configs(t *testing.T, js jetstream.JetStream) map[string]jetstream.StreamConfig {
	t.Helper()
	out := map[string]jetstream.StreamConfig{}
	list := js.ListStreams(t.Context())
	for info := range list.Info() {
		out[info.Config.Name] = info.Config
	}
	require.NoError(t, list.Err())
	return out
}

// A stream that covers the fired events is somebody's own: it is used as it is.
func TestStreamOfOnesOwn(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]jetstream.StreamConfig{
		"exactly": {Name: "OWN", Subjects: []string{"timers.fired.>"}, Description: "mine", MaxMsgs: 17, Storage: jetstream.MemoryStorage, Retention: jetstream.InterestPolicy},
		"wider":   {Name: "WIDE", Subjects: []string{"other", "timers.fired.>", "timers.dead.>"}, MaxMsgsPerSubject: 3, Discard: jetstream.DiscardNew, AllowDirect: true},
		"beside":  {Name: "OWN", Subjects: []string{"elsewhere", "timers.fired.>"}, DenyDelete: true, Duplicates: 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			ns := timerstest.NATS(t)
			js, err := jetstream.New(ns.Connect(t))
			require.NoError(t, err)
			_, err = js.CreateStream(t.Context(), config)
			require.NoError(t, err)
			before := configs(t, js)
			s := serve(t, ns)
			require.Equal(t, config.Name, s.status(t, "timers").Stream)
			if config.Duplicates != 0 {
				require.Contains(t, s.lapse.Log(), `"duplicates":"30s"`, "a short window is warned of, in units that a person reads")
			}
			fired := s.hear(t, "timers.fired.a")
			s.set(t, request("timers.set.a", "x", "@in 0s"))
			next(t, fired)
			nothingLeft(t, s.rdb)
			require.Equal(t, 1, s.status(t, "timers").Counts.Fired)
			require.Equal(t, before, configs(t, js))
		})
	}
	t.Run("made", func(t *testing.T) {
		ns := timerstest.NATS(t)
		serve(t, ns, "LAPSE_STREAM=EVENTS", "LAPSE_STREAM_MAX_AGE=1h", "LAPSE_STREAM_DUPLICATES=3m", "LAPSE_STREAM_MAX_BYTES=1000000")
		js, err := jetstream.New(ns.Connect(t))
		require.NoError(t, err)
		made := configs(t, js)["EVENTS"]
		require.ElementsMatch(t, []string{"timers.fired.>", "timers.dead.>"}, made.Subjects)
		require.Equal(t, jetstream.FileStorage, made.Storage)
		require.Equal(t, "1h0m0s 3m0s", made.MaxAge.String()+" "+made.Duplicates.String())
		require.EqualValues(t, 1_000_000, made.MaxBytes)
	})
}

func TestWithoutJetStream(t *testing.T) {
	t.Parallel()
	off := timerstest.NATS(t, func(o *server.Options) { o.JetStream = false })
	account := timerstest.NATS(t, func(o *server.Options) {
		has, without := server.NewAccount("HAS"), server.NewAccount("WITHOUT")
		o.Accounts = []*server.Account{has, without}
		o.Users = []*server.User{{Username: "u", Password: "p", Account: without}}
	})
	for name, url := range map[string]string{"server": off.URL(), "account": strings.Replace(account.URL(), "//", "//u:p@", 1)} {
		t.Run(name, func(t *testing.T) {
			rs := timerstest.Redis(t)
			line := refusesToStart(t, rs.URL(), url)
			for _, text := range []string{"JetStream", "-js", "LAPSE_DELIVERY=core"} {
				require.Contains(t, line, text)
			}
			require.NotContains(t, line, "u:p")
		})
	}

	t.Run("core delivery", func(t *testing.T) {
		s := serve(t, off, "LAPSE_DELIVERY=core")
		st := s.status(t, "timers")
		require.Equal(t, []string{"timers", "core", ""}, []string{st.Prefix, st.Delivery, st.Stream})
		fired := s.hear(t, "timers.fired.a")
		s.set(t, request("timers.set.a", "x", "@in 50ms"))
		m := next(t, fired)
		require.Equal(t, "payload of x", string(m.Data))
		require.NotEmpty(t, m.Header.Get("Nats-Msg-Id"))
		require.Empty(t, m.Reply, "nobody waits for an acknowledgement")
		nothingLeft(t, s.rdb)
		require.Equal(t, 1, s.status(t, "timers").Counts.Fired)
		s.unharmed(t)
	})
}

// A laptop must not take production's sets.
func TestAnotherDeploymentUnderThePrefix(t *testing.T) {
	t.Parallel()
	ns := timerstest.NATS(t)
	s := serve(t, ns)
	mine := timerstest.Redis(t)
	for _, delivery := range []string{"jetstream", "core"} {
		line := refusesToStart(t, mine.URL(), ns.URL(), "LAPSE_DELIVERY="+delivery)
		for _, text := range []string{"another deployment", "prefix timers", "LAPSE_PREFIX", "Redis"} {
			require.Contains(t, line, text)
		}
	}
	// Another database of the same Redis is other data as well.
	line := refusesToStart(t, mine.URL()+"?db=3", ns.URL())
	require.Contains(t, line, "another deployment")
	s.unharmed(t)
	timerstest.LapseOn(t, mine.URL(), ns.URL(), "LAPSE_PREFIX=laptop") // as the line says
}
