package timers_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/lapse-timers/lapse"

// allowed are the import arrows between our packages (docs/decisions.md,
// ADR 2). Data flow one way: main knows everything, timers knows nothing of
// ours, and notify and reconcile do not know each other.
var allowed = map[string][]string{
	"":                             {"notify", "reconcile", "timers", "timers/cli", "timers/client", "timers/doctor", "timers/embedded", "timers/fault", "timers/health", "timers/lifecycle", "timers/metrics", "timers/service", "timers/settings", "timers/web", "timers/web/page", "timers/wire"},
	"notify":                       {"timers"},
	"reconcile":                    {"timers"},
	"timers":                       {"timers/fault"},
	"timers/fault":                 {},
	"timers/wire":                  {},
	"timers/health":                {"timers", "timers/wire"},
	"timers/lifecycle":             {"timers/wire"},
	"timers/service":               {"timers", "timers/fault", "timers/wire"},
	"timers/metrics":               {"notify", "reconcile", "timers", "timers/wire"},
	"timers/settings":              {"timers", "timers/metrics", "timers/service", "timers/wire"},
	"timers/doctor":                {"timers", "timers/service", "timers/settings", "timers/wire"},
	"timers/client":                {"timers/wire"},
	"timers/bench":                 {"timers/client", "timers/wire"},
	"timers/cli":                   {"timers/bench", "timers/client", "timers/wire"},
	"timers/web":                   {"timers/wire"},
	"timers/web/page":              {"timers/client", "timers/wire"},
	"timers/embedded":              {},
	"timers/timerstest":            {"timers", "timers/timerstest/faultproxy"},
	"timers/timerstest/faultproxy": {},
	"timers/chaos":                 {"timers/client", "timers/timerstest"},
	"timers/browsertest":           {}, // tests of the page with a browser only
	"timers/endtoend":              {}, // tests of the whole program only
}

// only says which packages alone may use a library.
var only = map[string][]string{
	"github.com/kelseyhightower/envconfig": {""},
	"github.com/redis/go-redis/v9":         {"", "notify", "timers", "timers/bench", "timers/chaos", "timers/doctor", "timers/embedded", "timers/timerstest"},
	"github.com/nats-io/nats.go":           {"", "timers/bench", "timers/chaos", "timers/doctor", "timers/service", "timers/client", "timers/cli", "timers/embedded", "timers/timerstest", "timers/web/page"},
	"github.com/nats-io/nats-server/v2":    {"timers/embedded", "timers/timerstest"},
	"github.com/spf13/cobra":               {"", "timers/cli"},
	"github.com/HdrHistogram":              {"timers/bench"},
	"github.com/prometheus":                {"timers/metrics"},
	"github.com/schollz/progressbar/v3":    {"timers/bench"},
	"github.com/stretchr/testify":          {"timers/timerstest"},
	"go.opentelemetry.io/otel":             {"timers/client"},
}

func TestImportArrows(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, module+"/...").Output()
	require.NoError(t, err)
	var seen []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		pkg := strings.TrimPrefix(strings.TrimPrefix(fields[0], module), "/")
		seen = append(seen, pkg)
		arrows, known := allowed[pkg]
		require.True(t, known, "package %q is not in the plan: say in ADR 2 what it is for, and here what it may import", pkg)
		for _, imported := range fields[1:] {
			if ours, ok := strings.CutPrefix(imported, module+"/"); ok {
				require.Contains(t, arrows, ours, "%q imports %q", pkg, ours)
			}
			for library, users := range only {
				if imported == library || strings.HasPrefix(imported, library+"/") {
					require.Contains(t, users, pkg, "%q imports %s", pkg, imported)
				}
			}
		}
	}
	for pkg := range allowed {
		require.True(t, slices.Contains(seen, pkg), "package %q is in the plan and not in the tree", pkg)
	}
}

// What another service builds when it imports the client.
func TestClientBuildsWithoutRedis(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", module+"/timers/client").Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		require.False(t, strings.Contains(line, "redis"), "the client depends on %s", line)
		if ours, ok := strings.CutPrefix(strings.TrimSpace(line), module+"/"); ok {
			require.Contains(t, []string{"timers/client", "timers/wire"}, ours)
		}
	}
}
