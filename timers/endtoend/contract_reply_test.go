package endtoend

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
)

// NATS does not ask whether the requester may publish to its reply subject: a
// service that answers there lends out its own rights.
func TestReplySubjectsThatLapseMustNotPublishTo(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	s.set(t, request("timers.set.kept", "x", "@in 1h"))
	// nats-server itself refuses reply subjects under $JS.ACK.
	replies := []string{
		"timers", "timers.fired.x", "timers.fired.kept", "timers.dead.x", "timers.set.x", "timers.cancel.kept", "timers.status", "timers.anything", "timers.*.x", "timers.>",
		"$JS.API.STREAM.INFO.TIMERS", "$JS.API.STREAM.DELETE.TIMERS", "$JS.API.STREAM.PURGE.TIMERS", "$SYS.x", "$SYS.REQ.SERVER.PING", "$SRV.PING", "$", "$KV.x.y",
		strings.Repeat("r", 1025), // a server with a lower max_control_line would end the connection of who answers
	}
	var traps []*nats.Subscription
	for _, subject := range []string{"timers", "timers.fired.>", "timers.dead.>", "timers.anything", "$JS.API.STREAM.INFO.TIMERS", "$JS.API.STREAM.DELETE.TIMERS",
		"$JS.API.STREAM.PURGE.TIMERS", "$SYS.x", "$SYS.REQ.>", "$", "$KV.>"} {
		traps = append(traps, s.hear(t, subject))
	}
	good := map[string]*nats.Msg{
		"set": request("timers.set.kept", "y", "@in 1h"), "set, refused": request("timers.set", "y", "@in 1h"), "set, refused later": request("timers.set.kept", "y", "@at 9999-01-01T00:00:00Z"),
		"get": about("timers.get.kept", "x"), "get, refused": about("timers.get.kept", ""), "get of none": about("timers.get.kept", "none"),
		"cancel": about("timers.cancel.kept", "x"), "retry": about("timers.retry.kept", "x"), "list": about("timers.list", ""), "list of a topic": about("timers.list.kept", ""), "list, refused": about("timers.list", "{"), "status": about("timers.status", ""),
	}
	sent := 0
	before := s.stored(t)
	for name, m := range good {
		for _, reply := range replies {
			bad := &nats.Msg{Subject: m.Subject, Reply: reply, Header: m.Header, Data: m.Data}
			require.NoError(t, s.nc.PublishMsg(bad), name)
			sent++
		}
	}
	// The endpoints answer in order, so their answers to these come after
	// whatever they had to say to the others.
	for _, m := range []*nats.Msg{about("timers.get.kept", "none"), about("timers.cancel.kept", "none"), about("timers.retry.kept", "none"), about("timers.set.kept", ""), about("timers.set", ""), about("timers.list", "{"), about("timers.list.kept", "{")} {
		require.NotEmpty(t, s.ask(t, m).Header.Get("Nats-Service-Error"))
	}
	require.Equal(t, sent, s.status(t, "timers").Counts.Ignored)
	require.NoError(t, s.nc.Flush())
	for _, trap := range traps {
		n, _, err := trap.Pending()
		require.NoError(t, err)
		if n > 0 {
			t.Errorf("%d messages on %s, such as %q", n, trap.Subject, next(t, trap).Data)
		}
	}
	require.Equal(t, before, s.stored(t), "an ignored request was carried out")
	require.Equal(t, 0, count(t, s.nc, "TIMERS", ">"), "a reply was stored in the stream")

	// Near misses are ordinary subjects.
	for _, reply := range []string{"timersx", "timers-other.x", "Timers.x", "x.timers", "x.$SYS", strings.Repeat("r", 1024)} {
		inbox := s.hear(t, reply)
		m := about("timers.get.kept", "x")
		m.Reply = reply
		require.NoError(t, s.nc.PublishMsg(m))
		require.Equal(t, "payload of x", string(next(t, inbox).Data))
	}
	require.Equal(t, sent, s.status(t, "timers").Counts.Ignored)

	// micro's stats have the same figure, by verb.
	ignored := int64(0)
	for name, e := range s.stats(t) {
		if name == "set" || name == "get" || name == "cancel" || name == "retry" || name == "list" || name == "status" {
			ignored += e.Ignored
		}
	}
	require.EqualValues(t, sent, ignored)
	s.unharmed(t)
}

// endpointStats is what micro's stats say of an endpoint: its own figures, and
// ours under "data".
type endpointStats struct {
	NumRequests int64
	Requests    int64   `json:"requests"`
	Errors      int64   `json:"errors"`
	Silent      int64   `json:"without_reply_subject"`
	Ignored     int64   `json:"ignored_reply_subject"`
	AverageMS   float64 `json:"average_ms"`
	LastError   string  `json:"last_error"`
}

// stats are the figures of the only instance, by endpoint.
func (s *served) stats(t *testing.T) map[string]endpointStats {
	t.Helper()
	var reply struct {
		Endpoints []struct {
			Name, Subject string
			NumRequests   int64 `json:"num_requests"`
			Data          endpointStats
		}
	}
	require.NoError(t, json.Unmarshal(s.ok(t, about("$SRV.STATS.timers", "")).Data, &reply))
	out := map[string]endpointStats{}
	for _, e := range reply.Endpoints {
		e.Data.NumRequests = e.NumRequests
		out[e.Name] = e.Data
	}
	return out
}

// nats micro ls, info and stats work as for any service.
func TestMicro(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	type identity struct {
		Type, Name, ID, Version string
		Metadata                map[string]string
	}
	var st struct{ Version, Deployment, Instance string }
	require.NoError(t, json.Unmarshal(s.ok(t, about("timers.status", "")).Data, &st))
	var first identity
	for _, subject := range []string{"$SRV.PING", "$SRV.PING.timers", "$SRV.INFO", "$SRV.INFO.timers", "$SRV.STATS", "$SRV.STATS.timers"} {
		var id identity
		require.NoError(t, json.Unmarshal(s.ok(t, about(subject, "")).Data, &id))
		require.Equal(t, "timers", id.Name)
		require.Regexp(t, `^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`, id.Version)
		require.Equal(t, map[string]string{"lapse-prefix": "timers", "lapse-deployment": st.Deployment, "lapse-instance": st.Instance}, id.Metadata)
		if first.ID == "" {
			first = id
		}
		require.Equal(t, first.ID, id.ID)
	}
	s.ok(t, about("$SRV.PING.timers."+first.ID, ""))

	var info struct {
		Description string
		Endpoints   []struct {
			Name, Subject string
			QueueGroup    string `json:"queue_group"`
		}
	}
	require.NoError(t, json.Unmarshal(s.ok(t, about("$SRV.INFO.timers", "")).Data, &info))
	require.NotEmpty(t, info.Description)
	subjects := map[string]string{}
	for _, e := range info.Endpoints {
		subjects[e.Subject] = e.Name
		require.Equal(t, "q", e.QueueGroup, "micro's default, so that instances share the requests")
	}
	for _, subject := range []string{"timers.set.>", "timers.set", "timers.get.>", "timers.get", "timers.cancel.>", "timers.cancel", "timers.retry.>", "timers.retry", "timers.list.>", "timers.list", "timers.status"} {
		require.Contains(t, subjects, subject)
	}

	// The figures, after some requests of each outcome.
	for i := range 3 {
		s.set(t, request("timers.set.a", fmt.Sprint(i), "@in 1h"))
	}
	isRefusal(t, s.ask(t, request("timers.set.a", "x", "@in -1h")), 400, "invalid_schedule")
	isRefusal(t, s.ask(t, request("timers.set.a", "x", "@at 9999-01-01T00:00:00Z")), 400, "invalid_schedule") // by Redis's clock
	isRefusal(t, s.ask(t, request("timers.set", "x", "@in 1h")), 400, "invalid_topic")
	require.NoError(t, s.nc.PublishMsg(request("timers.set.a", "silent", "@in 1h")))
	s.ok(t, about("timers.get.a", "0"))
	isRefusal(t, s.ask(t, about("timers.get.a", "none")), 404, "not_found")
	s.ok(t, about("timers.cancel.a", "0"))
	isRefusal(t, s.ask(t, about("timers.cancel.a", "0")), 404, "not_found")
	s.ok(t, about("timers.list", ""))
	isRefusal(t, s.ask(t, about("timers.list.a", "[")), 400, "invalid_request")
	timerstest.Eventually(t, 10*time.Second, "the silent set is carried out", func() bool {
		return s.ask(t, about("timers.get.a", "silent")).Header.Get("Nats-Service-Error-Code") == ""
	})
	gets := s.stats(t)["get"].Requests

	stats := s.stats(t)
	set := stats["set"]
	require.EqualValues(t, 7, set.Requests)
	require.EqualValues(t, 3, set.Errors)
	require.EqualValues(t, 1, set.Silent)
	require.Zero(t, set.Ignored)
	require.Greater(t, set.AverageMS, 0.0)
	require.Less(t, set.AverageMS, 1000.0)
	require.Contains(t, set.LastError, "invalid_topic")
	require.GreaterOrEqual(t, gets, int64(3))
	require.GreaterOrEqual(t, stats["get"].Errors, int64(1))
	require.EqualValues(t, 2, stats["cancel"].Requests)
	require.EqualValues(t, 1, stats["cancel"].Errors)
	require.Contains(t, stats["cancel"].LastError, "not_found")
	require.EqualValues(t, 2, stats["list"].Requests)
	require.EqualValues(t, 1, stats["list"].Errors)
	require.EqualValues(t, 1, stats["status"].Requests)
	require.EqualValues(t, 6, stats["set"].NumRequests, "micro's own figure, of this endpoint alone")
	s.unharmed(t)
}

// strangeReplies are no acknowledgements of the stream TIMERS.
var strangeReplies = []string{
	"", "ok", "+OK", "null", "[]", "0", "{}", `"TIMERS"`, "\x00\xff", `{"stream":"OTHER","seq":1}`, `{"stream":"OTHER","seq":1,"duplicate":true}`,
	`{"stream":"","seq":1}`, `{"seq":1}`, `{"stream":"TIMERS"}`, `{"stream":"TIMERS","seq":0}`, `{"stream":"timers","seq":1}`, `{"stream":["TIMERS"],"seq":1}`,
	`{"error":{"code":503,"err_code":10077,"description":"no"}}`, `{"error":{"code":503,"err_code":10077,"description":"no"},"stream":"OTHER","seq":0}`,
	`{"error":"not_found","message":"x"}`, `{"type":"io.nats.jetstream.api.v1.pub_ack","stream":"OTHER","seq":1}`,
}

// A subscriber that answers what it hears, as a micro handler does, is not the
// stream, whatever it says.
func TestSubscriberThatReplies(t *testing.T) {
	t.Parallel()
	s := serve(t, timerstest.NATS(t))
	bodies := strangeReplies
	answered := make(chan string, 10*len(bodies))
	_, err := s.nc.Subscribe("timers.fired.answer", func(m *nats.Msg) {
		for range 3 {
			if m.Respond(m.Data) != nil {
				answered <- "no reply subject"
			}
		}
		// Likewise as an error of micro, and with a status that is none of NATS's.
		m.RespondMsg(&nats.Msg{Header: nats.Header{"Nats-Service-Error-Code": {"500"}, "Nats-Service-Error": {"x"}}})      //nolint:errcheck // it went above
		m.RespondMsg(&nats.Msg{Header: nats.Header{"Status": {"404"}, "Description": {"No Messages"}}, Data: []byte(nil)}) //nolint:errcheck // likewise
		m.RespondMsg(&nats.Msg{Header: nats.Header{"Status": {"503"}}, Data: []byte("x")})                                 //nolint:errcheck // likewise
		answered <- string(m.Data)
	})
	require.NoError(t, err)
	require.NoError(t, s.nc.Flush())
	for i, body := range bodies {
		m := request("timers.set.answer", fmt.Sprint(i), "@in 0s")
		m.Data = []byte(body)
		s.set(t, m)
	}
	var heard []string
	for range bodies {
		select {
		case body := <-answered:
			heard = append(heard, body)
		case <-time.After(20 * time.Second):
			t.Fatalf("%d of %d came", len(heard), len(bodies))
		}
	}
	require.ElementsMatch(t, bodies, heard)
	nothingLeft(t, s.rdb)
	require.Equal(t, len(bodies), count(t, s.nc, "TIMERS", "timers.fired.answer"))
	counts := s.status(t, "timers").Counts
	require.Equal(t, len(bodies), counts.Fired)
	require.Zero(t, counts.Duplicates+counts.Refused+counts.Unknown)
	require.Empty(t, answered, "a fire was tried again")
	s.unharmed(t)
}

// Nor is it taken for the stream while the stream stores nothing.
func TestSubscriberThatRepliesInPlaceOfAFullStream(t *testing.T) {
	t.Parallel()
	ns := timerstest.NATS(t)
	js, err := jetstream.New(ns.Connect(t))
	require.NoError(t, err)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>"}, MaxMsgs: 1, Discard: jetstream.DiscardNew, Storage: jetstream.MemoryStorage})
	require.NoError(t, err)
	s := serve(t, ns, "LAPSE_RETRY_MIN=10ms", "LAPSE_RETRY_MAX=50ms")
	_, err = s.nc.Subscribe("timers.fired.answer", func(m *nats.Msg) {
		m.Respond(m.Data) //nolint:errcheck // the count of what is kept tells
	})
	require.NoError(t, err)
	require.NoError(t, s.nc.Flush())
	for i, body := range strangeReplies {
		m := request("timers.set.answer", fmt.Sprint(i), "@in 0s")
		m.Data = []byte(body)
		s.set(t, m)
	}
	// Each of them is tried, refused by the stream, and kept.
	timerstest.Eventually(t, 20*time.Second, "all have been tried again and again", func() bool {
		return s.status(t, "timers").Counts.Refused > 5*len(strangeReplies)
	})
	require.Len(t, s.list(t, "timers.list.answer", "").Timers, len(strangeReplies)-1, "a reply was taken for the acknowledgement")
	require.Equal(t, 1, s.status(t, "timers").Counts.Fired)

	config := stream.CachedInfo().Config
	config.MaxMsgs = -1
	_, err = js.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	nothingLeft(t, s.rdb)
	require.Equal(t, len(strangeReplies), count(t, s.nc, "TIMERS", "timers.fired.answer"))
	require.Equal(t, len(strangeReplies), s.status(t, "timers").Counts.Fired)
}
