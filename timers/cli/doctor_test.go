package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/wire"
)

func examination(findings ...wire.Finding) wire.DoctorReport {
	r := wire.DoctorReport{Findings: findings}
	for _, f := range findings {
		switch f.Status {
		case wire.FindingOK:
			r.OK++
		case wire.FindingWarn:
			r.Warn++
		case wire.FindingFail:
			r.Fail++
		case wire.FindingUnknown:
			r.Unknown++
		}
	}
	return r
}

func runDoctor(r wire.DoctorReport, err error, args ...string) (code int, out string) {
	var b bytes.Buffer
	root := New(Info{Doctor: func(_ context.Context, fix bool) (wire.DoctorReport, error) {
		if fix {
			r.Findings[len(r.Findings)-1].Fixed = true
		}
		return r, err
	}})
	root.SetOut(&b)
	root.SetErr(&b)
	root.SetArgs(append([]string{"doctor"}, args...))
	return Execute(context.Background(), root), b.String()
}

func TestDoctor(t *testing.T) {
	rs := wire.Finding{Check: "redis-reachable", Part: "redis", Status: wire.FindingOK, Found: "here"}
	ns := wire.Finding{Check: "nats-reachable", Part: "nats", Status: wire.FindingOK, Found: "here"}
	gone := func(f wire.Finding) wire.Finding { f.Status = wire.FindingFail; return f }
	unknown := wire.Finding{Check: "hz", Part: "redis", Status: wire.FindingUnknown, Why: "hidden"}
	warn := wire.Finding{Check: "hz", Part: "redis", Status: wire.FindingWarn, Found: "hz 1", Wanted: "hz 100", Why: "late", Remedy: "redis-cli CONFIG SET hz 100\nredis.conf: hz 100", Fixable: true}
	for _, tc := range []struct {
		name string
		r    wire.DoctorReport
		err  error
		args []string
		code int
		says string
	}{
		{"healthy", examination(rs, ns), nil, nil, 0, "healthy: 2 checks"},
		{"unknown", examination(rs, ns, unknown), nil, []string{"--strict"}, 0, "UNKNOWN hz"},
		{"warning", examination(rs, ns, warn), nil, nil, 0, "WARN    hz"},
		{"strict", examination(rs, ns, warn), nil, []string{"--strict"}, 5, "doctor --fix does 1"},
		{"fail", examination(rs, gone(ns)), nil, nil, 5, "FAIL    nats-reachable"},
		{"blind", examination(gone(rs), gone(ns)), nil, nil, 1, "neither Redis nor NATS"},
		{"settings", examination(), errors.New("LAPSE_X is no setting"), nil, 1, "lapse: LAPSE_X is no setting\n"},
		{"usage", examination(), nil, []string{"redis"}, 2, "doctor --help"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, out := runDoctor(tc.r, tc.err, tc.args...)
			require.Equal(t, tc.code, code, out)
			require.Contains(t, out, tc.says)
		})
	}

	_, out := runDoctor(examination(rs, ns, warn), nil)
	require.Equal(t, `redis    1 ok, 1 warn
  WARN    hz
          found   hz 1
          wanted  hz 100
          why     late
          remedy  redis-cli CONFIG SET hz 100
                  redis.conf: hz 100
nats     1 ok
data     0 ok
events   0 ok
service  0 ok
0 failed, 1 warning, 0 not known, 2 ok
lapse doctor --fix does 1 of it
`, out)
	_, out = runDoctor(examination(rs, ns), nil, "--verbose")
	require.Contains(t, out, "  ok      redis-reachable: here\n")
	_, out = runDoctor(examination(rs, ns, warn), nil, "--fix")
	require.Contains(t, out, "FIXED   hz")
	require.NotContains(t, out, "doctor --fix does")
	_, out = runDoctor(examination(rs, ns, warn), nil, "--json")
	var got wire.DoctorReport
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Equal(t, examination(rs, ns, warn), got)
}
