package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Colours that are told apart by people who see few of them (Okabe and Ito),
// and shapes for those who print them in grey.
var (
	colours = map[string]string{Lapse: "#0072b2", JetStream: "#d55e00", Event: "#999999", Poll: "#009e73"}
	dashes  = map[string]string{Lapse: "", JetStream: "8 4", Event: "2 4", Poll: "12 4 2 4"}
	labels  = map[string]string{Lapse: "Lapse", JetStream: "JetStream schedules", Event: "expired event alone", Poll: "polling every second"}
	order   = []string{Lapse, JetStream, Poll, Event}
)

// drawing is an SVG picture.
type drawing struct{ strings.Builder }

func newDrawing(width, height int, title string) *drawing {
	d := &drawing{}
	fmt.Fprintf(d, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s" font-family="Helvetica, Arial, sans-serif" font-size="13">`+"\n",
		width, height, width, height, escape(title))
	// A ground of its own: pages may be dark.
	fmt.Fprintf(d, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	d.text(width/2, 26, "middle", 16, "#222222", title)
	return d
}

func (d *drawing) text(x, y int, anchor string, size int, colour, s string) {
	fmt.Fprintf(d, `<text x="%d" y="%d" text-anchor="%s" font-size="%d" fill="%s">%s</text>`+"\n", x, y, anchor, size, colour, escape(s))
}

func (d *drawing) line(x1, y1, x2, y2 float64, colour string, width float64) {
	fmt.Fprintf(d, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%.1f"/>`+"\n", x1, y1, x2, y2, colour, width)
}

func (d *drawing) end() string {
	d.WriteString("</svg>\n")
	return d.String()
}

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace(s)
}

// scale maps values to pixels by their logarithm.
type scale struct{ low, high, from, to float64 }

func (s scale) at(v float64) float64 {
	return s.from + (math.Log10(v)-math.Log10(s.low))/(math.Log10(s.high)-math.Log10(s.low))*(s.to-s.from)
}

// lagPlot shows p99 and p50 of the lag by the number of pending timers, both
// on logarithmic scales, of every contestant.
func lagPlot(r *Report) string {
	const width, height, left, right, top, bottom = 760, 460, 80, 24, 84, 56
	rate := 0.0
	points := map[string][]*Result{}
	low, high, most, least := math.Inf(1), 0.0, 0.0, math.Inf(1)
	for i := range r.Parts {
		p := &r.Parts[i]
		if p.Part != "growth" {
			continue
		}
		rate = p.Rate
		points[p.Contestant] = append(points[p.Contestant], p)
		most, least = max(most, float64(p.Pending)), min(least, float64(p.Pending))
		for _, v := range []float64{float64(p.Lag.P50), float64(p.Lag.P99)} {
			if !math.IsInf(v, 0) && v > 0 {
				low, high = min(low, v), max(high, v)
			}
		}
	}
	d := newDrawing(width, height, fmt.Sprintf("Lag by number of pending timers, %s fires a second", grouped(rate)))
	if high == 0 {
		return d.end()
	}
	if most == least {
		least, most = least/2, most*2
	}
	// A decade more above: where the points of what never arrives stand.
	low, high = math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high))+1)
	x := scale{least, most, left + 16, width - right - 16}
	y := scale{low, high, height - bottom, top}
	for v := low; v <= high*1.001; v *= 10 {
		label := grouped(v) + " ms"
		if v < 1 {
			label = fmt.Sprintf("%g ms", v)
		}
		if v > high/1.001 {
			label = "never"
		}
		d.line(left, y.at(v), width-right, y.at(v), "#dddddd", 1)
		d.text(left-8, int(y.at(v))+4, "end", 12, "#444444", label)
	}
	for v := math.Pow(10, math.Ceil(math.Log10(least)-1e-9)); v <= most*1.001; v *= 10 {
		d.line(x.at(v), top, x.at(v), height-bottom, "#eeeeee", 1)
		d.text(int(x.at(v)), height-bottom+20, "middle", 12, "#444444", grouped(v))
	}
	d.text((left+width-right)/2, height-14, "middle", 13, "#222222", "pending timers (p99: full marks, p50: hollow marks)")
	place := left
	for _, name := range order {
		results := points[name]
		if len(results) == 0 {
			continue
		}
		slices.SortFunc(results, func(a, b *Result) int { return a.Pending - b.Pending })
		d.curve(results, x, y, high, name, true)
		d.curve(results, x, y, high, name, false)
		fmt.Fprintf(d, `<line x1="%d" y1="52" x2="%d" y2="52" stroke="%s" stroke-width="2.5" stroke-dasharray="%s"/>`+"\n", place, place+34, colours[name], dashes[name])
		d.text(place+40, 56, "start", 12, "#222222", labels[name])
		place += 60 + 7*len(labels[name])
	}
	return d.end()
}

func (d *drawing) curve(results []*Result, x, y scale, never float64, name string, p99 bool) {
	var path []string
	width, fill := 1.2, "#ffffff"
	if p99 {
		width, fill = 2.5, colours[name]
	}
	var marks strings.Builder
	for _, p := range results {
		v := float64(p.Lag.P50)
		if p99 {
			v = float64(p.Lag.P99)
		}
		if math.IsInf(v, 0) {
			v = never
		}
		px, py := x.at(float64(p.Pending)), y.at(max(v, y.low))
		path = append(path, fmt.Sprintf("%.1f,%.1f", px, py))
		fmt.Fprintf(&marks, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s" stroke="%s" stroke-width="1.5"/>`+"\n", px, py, fill, colours[name])
	}
	fmt.Fprintf(d, `<polyline points="%s" fill="none" stroke="%s" stroke-width="%.1f" stroke-dasharray="%s"/>`+"\n", strings.Join(path, " "), colours[name], width, dashes[name])
	d.WriteString(marks.String())
}

// bar is one bar of the throughput picture.
type bar struct {
	group, name string
	perSecond   float64
}

// throughputPlot shows sets and drained timers per second.
func throughputPlot(r *Report) string {
	var bars []bar
	add := func(group string, match func(*Result) (float64, bool)) {
		for _, name := range order {
			for i := range r.Parts {
				p := &r.Parts[i]
				if v, ok := match(p); ok && p.Contestant == name {
					bars = append(bars, bar{group, p.who(), v})
				}
			}
		}
	}
	add("set, 512 callers", func(p *Result) (float64, bool) {
		if p.Set == nil || p.Concurrency != 512 {
			return 0, false
		}
		return p.Set.PerSec, true
	})
	add("burst, drained", func(p *Result) (float64, bool) {
		// The two others deliver nothing over NATS: their bars would not compare.
		if p.Burst == nil || p.Contestant != Lapse && p.Contestant != JetStream {
			return 0, false
		}
		return p.Burst.Drained, true
	})
	add("overdue at start, drained", func(p *Result) (float64, bool) {
		if p.Recover == nil {
			return 0, false
		}
		return p.Recover.Drained, true
	})
	const width, left, right, top, thick = 760, 190, 90, 52, 24
	rows, most, last := 0, 0.0, ""
	for _, b := range bars {
		if b.group != last {
			rows, last = rows+1, b.group
		}
		rows++
		most = max(most, b.perSecond)
	}
	d := newDrawing(width, top+rows*(thick+6)+20, "Timers per second")
	y := top
	last = ""
	for _, b := range bars {
		if b.group != last {
			last = b.group
			d.text(16, y+17, "start", 13, "#222222", b.group)
			y += thick + 6
		}
		name, _, _ := strings.Cut(b.name, ",")
		long := b.perSecond / most * (width - left - right)
		d.text(left-8, y+17, "end", 12, "#444444", strings.Replace(b.name, name, labels[name], 1))
		fmt.Fprintf(d, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", left, y, long, thick, colours[name])
		d.text(left+int(long)+8, y+17, "start", 12, "#222222", grouped(b.perSecond)+"/s")
		y += thick + 6
	}
	return d.end()
}
