package endtoend

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/wire"
)

// scraped is what /metrics told.
type scraped struct {
	families map[string]*dto.MetricFamily
	text     string
}

func scrape(t *testing.T, l *timerstest.LapseServer) scraped {
	t.Helper()
	resp, err := http.Get("http://" + l.HTTP + "/metrics")
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, 200, resp.StatusCode, string(body))
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	require.NoError(t, err)
	return scraped{families, string(body)}
}

// sum is the sum of the series of a metric that have the labels, given as name,
// value, name, value; of a histogram the number of observations.
func (s scraped) sum(name string, labels ...string) float64 {
	total := 0.0
series:
	for _, m := range s.families[name].GetMetric() {
		for i := 0; i < len(labels); i += 2 {
			has := false
			for _, l := range m.GetLabel() {
				has = has || l.GetName() == labels[i] && l.GetValue() == labels[i+1]
			}
			if !has {
				continue series
			}
		}
		total += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return total
}

// What was done is what is counted, and what the dashboard and the alerts ask for
// is what a service exports that has done it.
func TestMetrics(t *testing.T) {
	t.Parallel()
	rs := timerstest.Redis(t)
	ns, url, _ := withUsers(t, "timers.fired.secret.>")
	l := timerstest.LapseOn(t, rs.URL(), url, "LAPSE_MAX_ATTEMPTS=1", "LAPSE_METRICS_TOPICS=orders, secret.plans", quickExit)
	c := newClient(t, ns.Connect(t, nats.UserInfo("test", "pw")))
	set := func(topic, id string, when client.When) {
		t.Helper()
		_, err := c.Set(t.Context(), topic, []byte("x"), when, client.ID(id))
		require.NoError(t, err)
	}
	for i := range 5 {
		set("orders.close", string(rune('a'+i)), client.In(20*time.Millisecond))
	}
	set("invoices", "a", client.In(20*time.Millisecond))
	set("secret.plans", "a", client.In(20*time.Millisecond))
	set("orders", "far", client.In(time.Hour))
	set("orders", "not", client.In(time.Hour))
	_, err := c.Cancel(t.Context(), "orders", "not")
	require.NoError(t, err)
	_, err = c.Get(t.Context(), "orders", "never")
	require.ErrorIs(t, err, client.ErrNotFound)
	_, err = c.Set(t.Context(), "orders", nil, client.Schedule("@whenever"))
	require.Error(t, err)

	var s scraped
	timerstest.Eventually(t, soon, "all are fired or dead, and counted", func() bool {
		s = scrape(t, l)
		return s.sum("lapse_fires_total", "outcome", "delivered") == 6 && s.sum("lapse_fires_total", "outcome", "dead") == 1 &&
			s.sum("lapse_timers_dead") == 1 && s.sum("lapse_fires_in_flight") == 0 && s.sum("lapse_timers_pending") == 1
	})
	for _, want := range []struct {
		value  float64
		name   string
		labels []string
	}{
		{7, "lapse_fires_total", nil}, // each attempt once
		{5, "lapse_fires_total", []string{"topic", "orders", "outcome", "delivered"}},
		{1, "lapse_fires_total", []string{"topic", "other", "outcome", "delivered"}},
		{1, "lapse_fires_total", []string{"topic", "secret.plans", "outcome", "dead"}},
		{6, "lapse_fire_lag_seconds", nil},
		{7, "lapse_fire_attempts", nil},
		{6, "lapse_publish_duration_seconds", []string{"outcome", "delivered"}},
		{1, "lapse_publish_duration_seconds", []string{"outcome", "refused"}},
		{9, "lapse_requests_total", []string{"verb", "set", "outcome", "ok"}},
		{1, "lapse_requests_total", []string{"verb", "set", "outcome", string(wire.InvalidSchedule)}},
		{1, "lapse_requests_total", []string{"verb", "cancel", "outcome", "ok"}},
		{1, "lapse_requests_total", []string{"verb", "get", "outcome", string(wire.NotFound)}},
		{10, "lapse_request_duration_seconds", []string{"verb", "set"}},
		{1, "lapse_build_info", nil},
		{1, "lapse_ready", nil},
		{1, "lapse_crew_instances", nil},
		{1, "lapse_part_health", []string{"part", "redis"}},
		{1, "lapse_part_health", []string{"part", "nats"}},
		{0, "lapse_timers_overdue", nil},
	} {
		require.Equal(t, want.value, s.sum(want.name, want.labels...), "%s %v", want.name, want.labels)
	}
	// The trigger of each was touched, or its event came by Redis's own doing.
	require.Positive(t, s.sum("lapse_nudges_total")+s.sum("lapse_events_total", "result", "heard"))
	require.Positive(t, s.sum("lapse_redis_call_duration_seconds", "call", "claim"))
	require.Positive(t, s.sum("lapse_redis_memory_bytes"))
	require.Contains(t, s.text, "go_goroutines")
	require.Contains(t, s.text, "process_resident_memory_bytes")
	require.NotContains(t, s.text, "/debug/pprof")

	t.Run("native histograms", func(t *testing.T) {
		h := protobuf(t, l)["lapse_fire_lag_seconds"].GetMetric()[0].GetHistogram()
		require.NotNil(t, h.Schema, "not native")
		require.NotEmpty(t, h.GetBucket(), "not classic")
	})
	t.Run("operations", func(t *testing.T) { operations(t, s) })
	t.Run("profiles are off", func(t *testing.T) {
		resp, err := http.Get("http://" + l.HTTP + "/debug/pprof/")
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, 404, resp.StatusCode)
	})
	t.Run("Redis is silent", func(t *testing.T) {
		rs.Pause()
		defer rs.Resume()
		timerstest.Eventually(t, soon, "it tells", func() bool {
			began := time.Now()
			s = scrape(t, l)
			require.Less(t, time.Since(began), 8*time.Second)
			return s.families["lapse_timers_pending"] == nil
		})
		require.Zero(t, s.sum("lapse_part_health", "part", "redis"))
		require.Zero(t, s.sum("lapse_ready"))
		require.Nil(t, s.families["lapse_redis_memory_bytes"], "what is not known is left out")
		require.EqualValues(t, 7, s.sum("lapse_fires_total"))
	})
}

// protobuf scrapes in the form that carries native histograms.
func protobuf(t *testing.T, l *timerstest.LapseServer) map[string]*dto.MetricFamily {
	t.Helper()
	req, err := http.NewRequest("GET", "http://"+l.HTTP+"/metrics", nil)
	require.NoError(t, err)
	req.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeProtoDelim)))
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	families := map[string]*dto.MetricFamily{}
	for d := expfmt.NewDecoder(resp.Body, expfmt.ResponseFormat(resp.Header)); ; {
		var f dto.MetricFamily
		err := d.Decode(&f)
		if err == io.EOF {
			return families
		}
		require.NoError(t, err)
		families[f.GetName()] = &f
	}
}

// Before Redis and NATS are there, a scrape is answered, and says that it is not
// ready. Profiles are there when they are asked for.
func TestMetricsAndProfilesWhileItWaits(t *testing.T) {
	t.Parallel()
	addr := freeAddr(t)
	nobody := freeAddr(t)
	l := timerstest.Lapse(t, "LAPSE_REDIS_URL=redis://"+nobody, "LAPSE_NATS_URL=nats://"+nobody, "LAPSE_HTTP_LISTEN="+addr, "LAPSE_PPROF=true", quickExit)
	l.Launch()
	timerstest.Eventually(t, soon, "it waits", func() bool { return strings.Contains(l.Log(), `"what":"Redis"`) })
	l.HTTP = addr
	s := scrape(t, l)
	require.NotNil(t, s.families["lapse_ready"])
	require.Zero(t, s.sum("lapse_ready"))
	require.NotNil(t, s.families["lapse_fires_total"], "there from the start, with zero")
	for path, holds := range map[string]string{"/debug/pprof/": "goroutine", "/debug/pprof/goroutine?debug=1": "goroutine profile", "/debug/pprof/cmdline": "serve"} {
		resp, err := http.Get("http://" + addr + path)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		require.NoError(t, err)
		require.Equal(t, 200, resp.StatusCode, path)
		require.Contains(t, string(body), holds, path)
	}
	require.NotContains(t, l.Log(), "profiles can be read", "the address is loopback")
	endsWell(t, l, 5*time.Second)
}

// The life of an instance in its log: one line for each change of state.
func TestLogHasOneLineForEachChange(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	l := timerstest.LapseOn(t, rs.URL(), ns.URL(), quickExit)
	lines := func(part string, msgs ...string) (found []string) {
		for line := range strings.Lines(l.Log()) {
			var entry struct{ Msg, Part string }
			if json.Unmarshal([]byte(line), &entry) == nil && slices.Contains(msgs, entry.Msg) && entry.Part == part {
				found = append(found, entry.Msg)
			}
		}
		return found
	}
	for _, fault := range []struct {
		part       string
		begin, end func()
	}{
		{"redis", rs.Pause, rs.Resume},
		{"nats", ns.Stop, ns.Start},
	} {
		fault.begin()
		timerstest.Eventually(t, soon, fault.part+" is degraded in the log", func() bool { return slices.Contains(lines(fault.part, "degraded"), "degraded") })
		readyz(t, l, 503, fault.part, wire.HealthDown) // twice, so that it was looked at again
		readyz(t, l, 503, fault.part, wire.HealthDown)
		fault.end()
		timerstest.Eventually(t, soon, fault.part+" has recovered in the log", func() bool { return slices.Contains(lines(fault.part, "recovered"), "recovered") })
	}
	endsWell(t, l, 10*time.Second)
	require.Equal(t, []string{"starting", "ready", "stopping", "stopped"}, lines("", "starting", "ready", "stopping", "stopped"))
	for _, part := range []string{"redis", "nats"} {
		changes := lines(part, "degraded", "recovered")
		for i, msg := range changes { // a slow machine may make it ill more than once, and each is a change
			require.Equal(t, []string{"degraded", "recovered"}[i%2], msg, "%s: %v", part, changes)
		}
	}
}
