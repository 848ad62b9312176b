package endtoend

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/doctor"
	"github.com/lapse-timers/lapse/timers/service"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/wire"
)

// natsWith starts nats-server with what the text of a nats-server.conf says of its
// users and accounts.
func natsWith(t *testing.T, conf string) *timerstest.NATSServer {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats-server.conf")
	require.NoError(t, os.WriteFile(file, []byte(conf), 0o600))
	read, err := server.ProcessConfigFile(file)
	require.NoError(t, err, conf)
	return timerstest.NATS(t, func(o *server.Options) { o.Users, o.Accounts = read.Users, read.Accounts })
}

// as is the address with a user of natsWith, whose password is pw.
func as(user string, ns *timerstest.NATSServer) string {
	return strings.Replace(ns.URL(), "://", "://"+user+":pw@", 1)
}

// Each right that the user lacks is named, and the words of the remedy, put where
// it says, mend it.
func TestDoctorOnMissingNATSRights(t *testing.T) {
	t.Parallel()
	rs := timerstest.Redis(t)
	publish := []string{"timers.fired.>", "timers.dead.>", "_INBOX.>", "$SRV.INFO.timers", "$JS.API.STREAM.LIST", "$JS.API.STREAM.CREATE.TIMERS"}
	subscribe := []string{
		"timers.set", "timers.set.>", "timers.get", "timers.get.>", "timers.cancel", "timers.cancel.>",
		"timers.retry", "timers.retry.>", "timers.list", "timers.list.>", "timers.status", "$SRV.>", "_INBOX.>",
	}
	words := func(list []string, without string) string {
		var out []string
		for _, s := range list {
			if s != without {
				out = append(out, `"`+s+`"`)
			}
		}
		return strings.Join(out, ", ")
	}
	conf := func(publish, subscribe, deny string) string {
		return fmt.Sprintf(`authorization { users: [ { user: lapse, password: pw, permissions: {
			publish: { allow: ["$SYS.REQ.USER.INFO", "$JS.API.INFO", "timers.status", %s] }
			subscribe: { allow: [%s], deny: [%s] } } } ] }`, publish, subscribe, deny)
	}
	look := func(t *testing.T, conf string) doctor.Deployment {
		return deployed(rs.URL(), as("lapse", natsWith(t, conf)))
	}
	for _, tc := range []struct{ kind, subject string }{
		{"publish", "timers.fired.>"}, {"publish", "timers.dead.>"}, {"publish", "$JS.API.STREAM.CREATE.TIMERS"}, {"publish", "$SRV.INFO.timers"},
		{"subscribe", "timers.set.>"}, {"subscribe", "timers.cancel"},
	} {
		t.Run(tc.subject, func(t *testing.T) {
			t.Parallel()
			f := named(t, look(t, conf(words(publish, tc.subject), words(subscribe, tc.subject), "")), tc.kind+"-rights", wire.FindingFail)
			_, add, ok := strings.Cut(f.Remedy, "nats-server.conf: ")
			require.True(t, ok, f.Remedy)
			add, _, _ = strings.Cut(add, "\n")
			require.Equal(t, `"`+tc.subject+`"`, add)
			have := map[string]string{"publish": words(publish, tc.subject), "subscribe": words(subscribe, tc.subject)}
			have[tc.kind] += ", " + add
			mended(t, look(t, conf(have["publish"], have["subscribe"], "")), tc.kind+"-rights")
		})
	}
	t.Run("denied", func(t *testing.T) {
		t.Parallel()
		f := named(t, look(t, conf(words(publish, ""), words(subscribe, ""), `"timers.set.secret.>", "timers.list.*"`)), "subscribe-rights", wire.FindingFail)
		require.Contains(t, f.Remedy, `take out of permissions.subscribe.deny: "timers.set.secret.>", "timers.list.*"`)
	})
	t.Run("not told", func(t *testing.T) {
		t.Parallel()
		r := doctor.Run(t.Context(), look(t, strings.Replace(conf(words(publish, ""), words(subscribe, ""), ""), `"$SYS.REQ.USER.INFO", "$JS.API.INFO", `, "", 1)))
		for check, right := range map[string]string{"publish-rights": "$SYS.REQ.USER.INFO", "subscribe-rights": "$SYS.REQ.USER.INFO", "jetstream-account": "$JS.API.INFO"} {
			f, _ := r.Find(check)
			require.Equal(t, wire.FindingUnknown, f.Status, "%+v", f)
			require.Contains(t, f.Why, "refused", "%+v", f)
			require.Contains(t, f.Remedy, `"`+right+`"`, "%+v", f)
		}
	})
}

// What the account may not store keeps Lapse from starting, or will have the stream
// refuse; what doctor says of it is what the service meets.
func TestDoctorOnTheLimitsOfAnAccount(t *testing.T) {
	t.Parallel()
	rs := timerstest.Redis(t)
	const max = `users: [ { user: %s, password: pw } ] }
	`
	var conf strings.Builder
	conf.WriteString("accounts {\n")
	for user, limits := range map[string]string{
		"streams": "max_streams: 1", "bound": "max_bytes_required: true", "large": "max_file: 1MB", "one": "disk_max_stream_bytes: 1MB",
		"reserved": "max_file: 1MB", "full": "max_file: 100KB",
	} {
		fmt.Fprintf(&conf, "%s { jetstream { %s }, "+max, user, limits, user)
	}
	ns := natsWith(t, conf.String()+"}")
	in := func(t *testing.T, user string) (doctor.Deployment, jetstream.JetStream) {
		t.Helper()
		nc, err := nats.Connect(as(user, ns))
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		js, err := jetstream.New(nc)
		require.NoError(t, err)
		d := deployed(rs.URL(), as(user, ns))
		d.Settings.StreamReplicas, d.Settings.StreamMaxBytes = 1, -1
		return d, js
	}
	starts := func(t *testing.T, d doctor.Deployment) error {
		t.Helper()
		c, err := service.Connect(d.NATS, "test", true)
		require.NoError(t, err)
		defer c.Close()
		_, err = service.NewJetStream(t.Context(), c, "timers", service.StreamConfig{
			Name: d.Settings.Stream, Replicas: 1, MaxBytes: d.Settings.StreamMaxBytes, Duplicates: 2 * time.Minute,
		}, time.Second, slog.New(slog.DiscardHandler))
		return err
	}
	for _, tc := range []struct {
		user  string
		asked int64
		prior jetstream.StreamConfig // there before
	}{
		{"streams", -1, jetstream.StreamConfig{Name: "NEIGHBOUR", Subjects: []string{"neighbour"}}},
		{"bound", -1, jetstream.StreamConfig{}},
		{"large", 2 << 20, jetstream.StreamConfig{}},
		{"one", 2 << 20, jetstream.StreamConfig{}},
		{"reserved", -1, jetstream.StreamConfig{Name: "NEIGHBOUR", Subjects: []string{"neighbour"}, MaxBytes: 1 << 20}},
	} {
		t.Run(tc.user, func(t *testing.T) {
			d, js := in(t, tc.user)
			d.Settings.StreamMaxBytes = tc.asked
			if tc.prior.Name != "" {
				_, err := js.CreateStream(t.Context(), tc.prior)
				require.NoError(t, err)
			}
			f := named(t, d, "jetstream-account", wire.FindingFail)
			if tc.user != "reserved" { // such a stream can be made, and takes nothing
				require.Error(t, starts(t, d))
			}
			if _, bytes, ok := strings.Cut(f.Remedy, "LAPSE_STREAM_MAX_BYTES="); ok {
				_, err := fmt.Sscan(bytes, &d.Settings.StreamMaxBytes)
				require.NoError(t, err)
			} else {
				require.Contains(t, f.Remedy, "nats-server.conf")
				require.NoError(t, js.DeleteStream(context.WithoutCancel(t.Context()), tc.prior.Name))
			}
			mended(t, d, "jetstream-account")
			require.NoError(t, starts(t, d))
		})
	}
	t.Run("full", func(t *testing.T) {
		d, js := in(t, "full")
		stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>", "timers.dead.>"}})
		require.NoError(t, err)
		mended(t, d, "jetstream-account")
		for range 95 {
			_, err := js.Publish(t.Context(), "timers.fired.a", make([]byte, 970))
			require.NoError(t, err)
		}
		require.Contains(t, named(t, d, "jetstream-account", wire.FindingWarn).Remedy, "purge")
		require.NoError(t, stream.Purge(t.Context()))
		mended(t, d, "jetstream-account")
	})
}

// What cannot be edited is removed, and Lapse makes it anew.
func TestDoctorOnAStreamInMemory(t *testing.T) {
	t.Parallel()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	js, err := jetstream.New(ns.Connect(t))
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TIMERS", Subjects: []string{"timers.fired.>", "timers.dead.>"}, Storage: jetstream.MemoryStorage})
	require.NoError(t, err)
	d := deployed(rs.URL(), ns.URL())
	f := named(t, d, "stream-storage", wire.FindingWarn)
	require.Contains(t, f.Remedy, "stop Lapse")
	apply(t, ns.URL(), f.Remedy)
	timerstest.LapseOn(t, rs.URL(), ns.URL())
	mended(t, d, "stream-storage")
}
