package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// SuiteOptions choose between the published measurements and a quick look.
type SuiteOptions struct {
	Quick bool   // smaller counts, under two minutes
	Docs  string // directory for benchmarks.md, its plots and its data; "" writes none
}

// measured is one line of the suite: a part with its parameters, the
// contestants beside it, and how many instances of Lapse run.
type measured struct {
	part    string
	options Options
	vs      []string
	lapses  int
}

// suite is the plan. The lag at the largest number of pending timers is the
// last step of growth, so no line of its own measures it again; memory and
// idle share servers, since a million timers take most of a minute to set.
func suite(quick bool) []measured {
	all := Contestants
	size := func(full, quickly int) int {
		if quick {
			return quickly
		}
		return full
	}
	seconds := func(full, quickly int) time.Duration { return time.Duration(size(full, quickly)) * time.Second }
	most, patience := all, time.Duration(0)
	if quick {
		most, patience = []string{JetStream}, 4*time.Second
	}
	rate := Options{Pending: size(300*kilo, 5*kilo), Rate: float64(size(10*kilo, 2*kilo)), Duration: seconds(10, 2)}
	burst := Options{Pending: calibration, Count: size(100*kilo, 10*kilo), Repeat: size(3, 1)}
	return []measured{
		{"growth", Options{Pending: size(mega, 20*kilo), Rate: 100, Duration: seconds(20, 2), patience: patience}, all, 1},
		{"rate", rate, most, 1},
		{"rate", rate, nil, 3},
		{"burst", burst, most, 1},
		{"burst", burst, nil, 3},
		{"set", Options{Count: size(200*kilo, 20*kilo), Concurrency: 512, Repeat: size(3, 1)}, []string{JetStream}, 1},
		{"set", Options{Count: size(10*kilo, kilo), Concurrency: 1}, []string{JetStream}, 1},
		{"memory", Options{Pending: size(mega, 20*kilo), Duration: seconds(30, 3)}, nil, 1}, // and idle
		{"recover", burst, nil, 1},
	}
}

// RunSuite runs the published measurements on fresh servers, one contestant
// at a time, and writes the page after each part, so that a run that is cut
// off has kept what it measured. When o names parts, only these are measured,
// and the page keeps what an earlier run found for the others.
func RunSuite(ctx context.Context, o Options, s SuiteOptions) (*Report, error) {
	wanted, err := suiteParts(o.Parts)
	if err != nil {
		return nil, err
	}
	redis.SetLogger(&logging.VoidLogger{}) // what it says is in the errors too
	o.Fresh = &Fresh{Instances: 1}
	o.Pending, o.Rate, o.Duration, o.Count, o.Concurrency, o.Payload, o.Topics, o.Repeat, o.Vs = 0, 0, 0, 0, 0, 100, 10, 0, nil
	r := newRunner(o)
	if s.Docs != "" && len(wanted) < len(Parts) {
		if r.report.Parts, err = earlier(s.Docs); err != nil {
			return nil, err
		}
		r.report.Parts = slices.DeleteFunc(r.report.Parts, func(p Result) bool { return slices.Contains(wanted, p.Part) })
	}
	for _, m := range suite(s.Quick) {
		if !slices.Contains(wanted, m.part) {
			continue
		}
		if err := r.line(ctx, m); err != nil {
			return r.report, fmt.Errorf("part %s: %w", m.part, err)
		}
		if s.Docs != "" {
			if err := writePage(s.Docs, r.report, s.Quick); err != nil {
				return r.report, err
			}
		}
	}
	return r.report, nil
}

// suiteParts are the parts of the plan that were asked for.
func suiteParts(names []string) ([]string, error) {
	if len(names) == 0 {
		return Parts, nil
	}
	var out []string
	for _, name := range names {
		switch {
		case !slices.Contains(Parts, name):
			return nil, fmt.Errorf("part %q: want some of %s", name, strings.Join(Parts, ", "))
		case name == "lag":
			out = append(out, "growth") // its last step
		case name == "memory" || name == "idle":
			out = append(out, "memory", "idle") // they share servers
		default:
			out = append(out, name)
		}
	}
	return out, nil
}

// line runs one line of the plan.
func (r *runner) line(ctx context.Context, m measured) error {
	o := r.options
	fresh := *o.Fresh
	fresh.Instances = m.lapses
	o.Fresh, o.Vs = &fresh, m.vs
	o.Pending, o.Rate, o.Duration, o.Count, o.Concurrency, o.Repeat = m.options.Pending, m.options.Rate, m.options.Duration, m.options.Count, m.options.Concurrency, m.options.Repeat
	o.patience = m.options.patience
	if m.part == "memory" {
		return r.measure(ctx, Lapse, []step{{"memory", o.of("memory"), measureMemory}, {"idle", o.of("idle"), measureIdle}})
	}
	return r.part(ctx, m.part, o.of(m.part))
}

const dataFile = "benchmarks.json"

// earlier reads the results of the run before.
func earlier(docs string) ([]Result, error) {
	b, err := os.ReadFile(filepath.Join(docs, dataFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var r Report
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		return nil, fmt.Errorf("read the results of the run before: %w; remove %s to begin anew", err, filepath.Join(docs, dataFile))
	}
	return r.Parts, nil
}

// writePage writes the data, the plots and the page.
func writePage(docs string, r *Report, quick bool) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	page := filepath.Join(docs, "benchmarks.md")
	before, err := os.ReadFile(page)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the page of the run before: %w", err)
	}
	if err := os.MkdirAll(docs, 0o755); err != nil {
		return fmt.Errorf("make the directory for the page: %w", err)
	}
	for name, content := range map[string][]byte{
		dataFile:                    append(data, '\n'),
		"benchmarks.md":             []byte(renderPage(r, quick, written(string(before)))),
		"benchmarks-lag.svg":        []byte(lagPlot(r)),
		"benchmarks-throughput.svg": []byte(throughputPlot(r)),
	} {
		if err := os.WriteFile(filepath.Join(docs, name), content, 0o644); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}
