package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// SVG writes the report as plots: latency and rates by workload and subject, and how costs grow. Axes are logarithmic but
// for those of rates.
func (r *Report) SVG(w io.Writer) error {
	d := &drawing{}
	m := r.Machine
	d.text(margin, 26, "heading", "start", "Glovebox: what a run costs")
	d.text(margin, 44, "note", "start", fmt.Sprintf("%s, %d CPUs · %s · %s · load before %s", m.CPU, m.CPUs, m.Kernel,
		m.Distro, m.Load))
	d.y = 64
	r.latencyPlots(d)
	r.ratePlots(d)
	r.growthPlots(d)
	return d.write(w)
}

const (
	width  = 860
	margin = 24
)

// drawing is an SVG that grows downwards.
type drawing struct {
	body strings.Builder
	y    float64
}

func (d *drawing) write(w io.Writer) error {
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %d %.0f">
<style>
text { font: 12px "DejaVu Sans", Verdana, sans-serif; fill: #222 }
.heading { font-size: 18px; font-weight: bold } .title { font-size: 14px; font-weight: bold }
.note { fill: #666; font-size: 11px } .grid { stroke: #ddd } .axis { stroke: #888 }
.ours { fill: #0a7d5a } .theirs { fill: #8a94a6 } .whisker { stroke: #222; stroke-width: 1.5 }
.line { fill: none; stroke: #0a7d5a; stroke-width: 2 }
</style>
<rect width="100%%" height="100%%" fill="#fff"/>
%s</svg>
`, width, d.y+margin, width, d.y+margin, d.body.String())
	return err
}

func (d *drawing) add(format string, args ...any) { fmt.Fprintf(&d.body, format+"\n", args...) }

func (d *drawing) text(x, y float64, class, anchor, text string) {
	escaped := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace(oneLine(text))
	d.add(`<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`, x, y, class, anchor, escaped)
}

func (d *drawing) line(x1, y1, x2, y2 float64, class string) {
	d.add(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`, x1, y1, x2, y2, class)
}

// scale puts values on a logarithmic axis.
type scale struct{ low, high, from, to float64 }

// newScale makes an axis from a power of ten at or below all values to one at or above them.
func newScale(values []float64, from, to float64) scale {
	s := scale{low: math.Inf(1), high: math.Inf(-1), from: from, to: to}
	for _, v := range values {
		if v > 0 {
			s.low, s.high = math.Min(s.low, v), math.Max(s.high, v)
		}
	}
	if s.low > s.high {
		s.low, s.high = 1, 10
	}
	s.low = math.Pow(10, math.Floor(math.Log10(s.low)))
	s.high = math.Pow(10, math.Ceil(math.Log10(s.high)))
	if s.low == s.high {
		s.high *= 10
	}
	return s
}

func (s scale) at(v float64) float64 {
	if v < s.low {
		v = s.low
	}
	return s.from + (s.to-s.from)*math.Log10(v/s.low)/math.Log10(s.high/s.low)
}

// ticks are the powers of ten on the axis.
func (s scale) ticks() []float64 {
	var all []float64
	for v := s.low; v <= s.high*1.001; v *= 10 {
		all = append(all, v)
	}
	return all
}

const left, right, rowHeight = 230.0, width - 90.0, 20.0

// side is how a row is coloured.
func side(row Row) string {
	if strings.HasPrefix(row.Subject, "glovebox") || row.Subject == engineName {
		return "ours"
	}
	return "theirs"
}

// groups are those rows that want is true of, together by workload and number of callers.
func (r *Report) groups(want func(Row) bool) [][]Row {
	var groups [][]Row
	for _, row := range r.Rows {
		if !want(row) {
			continue
		}
		last := len(groups) - 1
		if last < 0 || groups[last][0].Workload != row.Workload || groups[last][0].Lang != row.Lang ||
			groups[last][0].Callers != row.Callers {
			groups = append(groups, nil)
			last++
		}
		groups[last] = append(groups[last], row)
	}
	return groups
}

// ratePlots draws, for each workload and number of callers above one, a bar for each subject. Its axis is linear.
func (r *Report) ratePlots(d *drawing) {
	groups := r.groups(func(row Row) bool { return row.Callers > 1 && row.PerSecond > 0 })
	if len(groups) == 0 {
		return
	}
	d.text(margin, d.y+14, "title", "start", "Several callers at a time: runs per second")
	d.y += 28
	for _, group := range groups {
		most := 0.0
		for _, row := range group {
			most = max(most, row.PerSecond)
		}
		d.text(margin, d.y+12, "title", "start",
			fmt.Sprintf("%s: %s, %d callers", group[0].Lang, group[0].Workload, group[0].Callers))
		for i, row := range group {
			y := d.y + 18 + rowHeight*float64(i) + rowHeight/2
			long := (right - left) * row.PerSecond / most
			d.text(left-8, y+4, "name", "end", row.Subject)
			d.add(`<rect x="%.1f" y="%.1f" width="%.1f" height="10" rx="2" class="%s"/>`, left, y-5, long, side(row))
			d.text(left+long+8, y+4, "note", "start", fmt.Sprintf("%.1f", row.PerSecond))
		}
		d.y += 18 + rowHeight*float64(len(group)) + 14
	}
	d.y += 10
}

// latencyPlots draws, for each workload that ran one at a time, a bar for each subject.
func (r *Report) latencyPlots(d *drawing) {
	groups := r.groups(func(row Row) bool { return row.Callers == 1 && !row.InARow && row.Done.P50 > 0 })
	var values []float64
	for _, row := range slices.Concat(groups...) {
		values = append(values, row.First.P50, row.Done.P50, row.Done.P95)
	}
	if len(groups) == 0 {
		return
	}
	x := newScale(values, left, right)
	d.text(margin, d.y+14, "title", "start", "One run at a time: ms from the request")
	d.text(margin, d.y+30, "note", "start",
		"block: from the median of the first byte to that of the end (the number); whisker: 95th percentile of the end")
	d.y += 44
	for _, group := range groups {
		top := d.y + 18
		bottom := top + rowHeight*float64(len(group))
		d.text(margin, d.y+12, "title", "start", group[0].Lang+": "+group[0].Workload)
		for _, v := range x.ticks() {
			d.line(x.at(v), top, x.at(v), bottom, "grid")
			d.text(x.at(v), bottom+13, "note", "middle", amount(v))
		}
		for i, row := range group {
			y := top + rowHeight*float64(i) + rowHeight/2
			d.text(left-8, y+4, "name", "end", row.Subject)
			d.line(left, y, right, y, "grid")
			// No bar from the left edge: where a logarithmic axis begins means nothing.
			first := row.First.P50
			if first <= 0 {
				first = row.Done.P50
			}
			d.add(`<rect x="%.1f" y="%.1f" width="%.1f" height="10" rx="2" class="%s"/>`, x.at(first)-2, y-5,
				x.at(row.Done.P50)-x.at(first)+4, side(row))
			d.line(x.at(row.Done.P50), y, x.at(row.Done.P95), y, "whisker")
			d.line(x.at(row.Done.P95), y-4, x.at(row.Done.P95), y+4, "whisker")
			d.text(x.at(row.Done.P95)+8, y+4, "note", "start", number(row.Done.P50))
		}
		d.y = bottom + 28
	}
}

// growthPlots draws a small plot for each cost.
func (r *Report) growthPlots(d *drawing) {
	const columns, height = 2, 180.0
	const cell = (width - 2*margin) / columns
	for _, g := range r.Growth {
		d.text(margin, d.y+14, "title", "start", "Growth with "+g.Of)
		d.y += 24
		for i, s := range g.Series {
			left := margin + float64(i%columns)*cell
			d.series(s, left, d.y, cell-20, height-20)
			if i%columns == columns-1 || i == len(g.Series)-1 {
				d.y += height + 10
			}
		}
	}
}

func (d *drawing) series(s Series, left, top, wide, high float64) {
	var ns, values []float64
	for _, p := range s.Points {
		ns, values = append(ns, p.N), append(values, p.Value)
	}
	x := newScale(ns, left+56, left+wide-24)
	y := newScale(values, top+high-26, top+38)
	d.text(left, top+12, "name", "start", s.Cost+", "+s.Unit)
	for _, v := range y.ticks() {
		d.line(x.from, y.at(v), x.to, y.at(v), "grid")
		d.text(x.from-6, y.at(v)+4, "note", "end", amount(v))
	}
	for _, v := range x.ticks() {
		d.line(x.at(v), y.from, x.at(v), y.from+4, "axis")
		d.text(x.at(v), y.from+16, "note", "middle", amount(v))
	}
	d.line(x.from, y.from, x.to, y.from, "axis")
	var path []string
	for _, p := range s.Points {
		path = append(path, fmt.Sprintf("%.1f,%.1f", x.at(p.N), y.at(p.Value)))
		d.add(`<circle cx="%.1f" cy="%.1f" r="3.5" class="ours"/>`, x.at(p.N), y.at(p.Value))
		d.text(x.at(p.N), y.at(p.Value)-8, "note", "middle", number(p.Value))
	}
	d.add(`<polyline class="line" points="%s"/>`, strings.Join(path, " "))
}
