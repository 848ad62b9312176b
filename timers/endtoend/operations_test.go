package endtoend

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/lapse-timers/lapse/timers/timerstest"
)

const operationsDir = "../../docs/operations"

func operationsFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(operationsDir, name))
	require.NoError(t, err)
	return b
}

type alertRule struct {
	Alert, Expr string
	Labels      map[string]string
	Annotations map[string]string
}

func alertRules(t *testing.T) (rules []alertRule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []alertRule } }
	require.NoError(t, yaml.Unmarshal(operationsFile(t, "alerts.yml"), &file))
	for _, g := range file.Groups {
		rules = append(rules, g.Rules...)
	}
	require.NotEmpty(t, rules)
	return rules
}

// dashboardExpressions are those of the panels, with Grafana's variables filled in.
func dashboardExpressions(t *testing.T) (exprs []string) {
	t.Helper()
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct {
				Type  string
				Query any
			}
		}
	}
	require.NoError(t, json.Unmarshal(operationsFile(t, "dashboard.json"), &board))
	fill := strings.NewReplacer("$__rate_interval", "5m", "$job", "lapse", "$instance", ".*")
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			require.NotEmpty(t, target.Expr, p.Title)
			exprs = append(exprs, fill.Replace(target.Expr))
		}
	}
	valuesOf := regexp.MustCompile(`label_values\(([a-z_]+)`)
	for _, v := range board.Templating.List {
		if q, ok := v.Query.(map[string]any); ok && v.Type == "query" {
			m := valuesOf.FindStringSubmatch(q["query"].(string))
			require.NotNil(t, m, "%v", q)
			exprs = append(exprs, m[1])
		}
	}
	require.Greater(t, len(exprs), 20)
	return exprs
}

// operations compares what docs/operations asks for with what a service exports.
func operations(t *testing.T, s scraped) {
	exprs := dashboardExpressions(t)
	for _, r := range alertRules(t) {
		exprs = append(exprs, r.Expr)
	}
	language := parser.NewParser(parser.Options{})
	for _, expr := range exprs {
		parsed, err := language.ParseExpr(expr)
		require.NoError(t, err, expr)
		var asked []*parser.VectorSelector
		var grouped []string
		parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
			switch n := node.(type) {
			case *parser.VectorSelector:
				asked = append(asked, n)
			case *parser.AggregateExpr:
				grouped = append(grouped, n.Grouping...)
			}
			return nil
		})
		require.NotEmpty(t, asked, expr)
		for _, sel := range asked {
			exported(t, s, expr, sel, grouped)
		}
	}

	// What Prometheus's own tool says of the text, where there is one.
	if promtool, err := exec.LookPath("promtool"); err == nil {
		cmd := exec.Command(promtool, "check", "metrics")
		cmd.Stdin = strings.NewReader(s.text)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
	}
}

// exported checks that the metric of a selector, its labels and their values are
// there. up, job and instance come from Prometheus.
func exported(t *testing.T, s scraped, expr string, sel *parser.VectorSelector, grouped []string) {
	t.Helper()
	if sel.Name == "up" {
		return
	}
	family := s.families[sel.Name]
	if family == nil {
		family = s.families[strings.TrimSuffix(sel.Name, "_bucket")]
	}
	require.NotNil(t, family, "nothing exports %s, of %s", sel.Name, expr)
	have := map[string][]string{"job": nil, "instance": nil}
	for _, m := range family.Metric {
		for _, l := range m.Label {
			have[l.GetName()] = append(have[l.GetName()], l.GetValue())
		}
		if m.Histogram != nil {
			have["le"] = nil
		}
	}
	for _, name := range grouped {
		require.Contains(t, have, name, "label of %s, of %s", sel.Name, expr)
	}
	for _, m := range sel.LabelMatchers {
		if m.Name == labels.MetricName || m.Name == "job" || m.Name == "instance" {
			continue
		}
		require.Contains(t, have, m.Name, "label of %s, of %s", sel.Name, expr)
		// Each of the alternatives, or one of them could be a slip.
		for value := range strings.SplitSeq(m.Value, "|") {
			require.Contains(t, have[m.Name], value, "value of %s of %s, of %s", m.Name, sel.Name, expr)
		}
	}
}

// Each alert has a chapter in the runbook, and a test in alerts_test.yml.
func TestAlertsHaveChaptersAndTests(t *testing.T) {
	runbook := string(operationsFile(t, "runbook.md"))
	var tests struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string
				ExpAlerts []any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	require.NoError(t, yaml.Unmarshal(operationsFile(t, "alerts_test.yml"), &tests))
	raised, silent := map[string]bool{}, map[string]bool{}
	for _, test := range tests.Tests {
		for _, a := range test.AlertRuleTest {
			if len(a.ExpAlerts) > 0 {
				raised[a.Alertname] = true
			} else {
				silent[a.Alertname] = true
			}
		}
	}
	rules := alertRules(t)
	for _, r := range rules {
		require.Contains(t, runbook, "\n## "+r.Alert+"\n", "its chapter")
		require.Equal(t, "docs/operations/runbook.md#"+strings.ToLower(r.Alert), r.Annotations["runbook"])
		require.NotEmpty(t, r.Annotations["summary"], r.Alert)
		require.Contains(t, []string{"critical", "warning", "info"}, r.Labels["severity"], r.Alert)
		require.True(t, raised[r.Alert] && silent[r.Alert], "%s is tested when it is to be raised, and when not", r.Alert)
	}
	require.Equal(t, len(rules), strings.Count(runbook, "\n## Lapse"), "chapters of alerts that are not there")

	if promtool, err := exec.LookPath("promtool"); err == nil {
		for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
			cmd := exec.Command(promtool, args...)
			cmd.Dir = operationsDir
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s %v: %s", promtool, args, out)
		}
	}
}

// The unit names settings that exist, stops Lapse before its Redis, and gives it
// the time that it may take; where there is systemd, that has no complaint either.
func TestUnit(t *testing.T) {
	unit := string(operationsFile(t, "lapse.service"))
	help, err := exec.Command(timerstest.LapseBinary(t), "help").Output()
	require.NoError(t, err)
	keys := map[string]string{}
	for line := range strings.Lines(unit) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(k, "#") {
			keys[k] = v
		}
	}
	for _, name := range regexp.MustCompile(`LAPSE_[A-Z_]+`).FindAllString(unit, -1) {
		require.Contains(t, string(help), name+" ")
	}
	require.Equal(t, "LAPSE_DATA_DIR=%S/"+keys["StateDirectory"], keys["Environment"])
	require.Equal(t, "mixed", keys["KillMode"])
	require.Equal(t, "/usr/local/bin/lapse serve", keys["ExecStart"])

	if analyze, err := exec.LookPath("systemd-analyze"); err == nil {
		// The command must exist where it is verified.
		file := filepath.Join(t.TempDir(), "lapse.service")
		require.NoError(t, os.WriteFile(file, bytes.ReplaceAll([]byte(unit), []byte("/usr/local/bin/lapse"), []byte(timerstest.LapseBinary(t))), 0o600))
		out, err := exec.Command(analyze, "verify", file).CombinedOutput()
		require.NoError(t, err, string(out))
		require.NotContains(t, string(out), "lapse.service", "it has something to say of the unit")
	}
}
