package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Report is what was measured.
type Report struct {
	Machine Machine  `json:"machine"`
	Quick   bool     `json:"quick"`
	TookMS  float64  `json:"took_ms"`
	Rows    []Row    `json:"rows"`
	Memory  *Memory  `json:"memory"`
	Bars    []Bar    `json:"bars"`
	Growth  []Growth `json:"growth,omitempty"`
	Notes   []string `json:"notes"` // what was not measured, and why
}

// OK is true when no run failed, printed something else or was lost. How fast they were is not in it.
func (r *Report) OK() bool {
	return !slices.ContainsFunc(r.Rows, func(row Row) bool { return row.Failed+row.Wrong+row.Lost > 0 })
}

// row finds what was measured of a workload of Python's, or nil. With one caller the subjects took turns.
func (r *Report) row(subject, workload string, callers int) *Row {
	return r.find(subject, workload, callers, false)
}

func (r *Report) find(subject, workload string, callers int, inARow bool) *Row {
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Subject == subject && row.Workload == workload && row.Lang == "python" && row.Callers == callers &&
			row.InARow == inARow && row.Runs > 0 {
			return row
		}
	}
	return nil
}

// Text writes the report as tables in Markdown.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, "%s, %d CPUs, %.1f GiB of memory; %s; %s; load before: %s; measured for %.0f s\n", oneLine(m.CPU), m.CPUs,
		float64(m.MemoryBytes)/(1<<30), oneLine(m.Kernel), oneLine(m.Distro), oneLine(m.Load), r.TookMS/1000)
	if m.busy() {
		fmt.Fprintf(&b, "\nThese numbers say little: the load before was above %d, so that other programs had the CPUs too. "+
			"Measure again when they have ended.\n", m.CPUs)
	}
	for _, callers := range r.callers() {
		r.latencyTable(&b, callers)
	}
	r.memoryTable(&b)
	r.growthTables(&b)
	r.barTable(&b)
	if !r.OK() {
		b.WriteString("\nNot every run came out right:\n\n")
		for _, row := range r.Rows {
			if row.Failed+row.Wrong+row.Lost > 0 {
				fmt.Fprintf(&b, "- %s %s, %s, %d callers: %d failed, %d wrong, %d lost of %d: %q\n", row.Lang, row.Workload, row.Subject,
					row.Callers, row.Failed, row.Wrong, row.Lost, row.Runs, row.FirstFailure)
			}
		}
	}
	if len(r.Notes) > 0 {
		b.WriteString("\nNot measured:\n\n")
		for _, note := range r.Notes {
			fmt.Fprintf(&b, "- %s\n", oneLine(note))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// oneLine makes text that others wrote, such as an error of another program, safe for a line of a terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r >= 0x200b && r <= 0x200f || r >= 0x2028 && r <= 0x202e || r == 0xfeff {
			return ' '
		}
		return r
	}, s)
}

func (r *Report) callers() []int {
	seen := map[int]bool{}
	for _, row := range r.Rows {
		seen[row.Callers] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

func (r *Report) latencyTable(b *strings.Builder, callers int) {
	if callers == 1 {
		b.WriteString("\nOne at a time. Taking turns: a run of each subject after one of another, with a short pause before. " +
			"In a row: run after run of\none subject, without pauses. On a machine that pages out what is idle the two differ " +
			"much, most of all for what lies ready.\nTimes in ms: first byte of output | end.\n\n" +
			"| workload | in | asked | runs | first p50 | p95 | end p50 | p95 | p99 | max | × bare | CPU ms | started |\n" +
			"|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	} else {
		fmt.Fprintf(b, "\n%d callers at a time. Times in ms: first byte of output | end.\n\n"+
			"| workload | in | runs | first p50 | p95 | end p50 | p95 | p99 | max | runs/s | CPU ms | of all CPUs | started |\n"+
			"|---|---|---|---|---|---|---|---|---|---|---|---|---|\n", callers)
	}
	for _, row := range r.Rows {
		if row.Callers != callers {
			continue
		}
		asked := ""
		if callers == 1 {
			asked = " taking turns |"
			if row.InARow {
				asked = " in a row |"
			}
		}
		fmt.Fprintf(b, "| %s %s | %s |%s %d | %s | %s | %s | %s | %s | %s |", row.Lang, row.Workload, row.Subject, asked, row.Runs,
			number(row.First.P50), number(row.First.P95), number(row.Done.P50), number(row.Done.P95), number(row.Done.P99),
			number(row.Done.Max))
		if callers == 1 {
			fmt.Fprintf(b, " %s | %s |", r.timesBare(row), optional(row.CPUMS))
		} else {
			fmt.Fprintf(b, " %.1f | %s | %s |", row.PerSecond, optional(row.CPUMS), optional(row.MachineCPUMS))
		}
		var starts []string
		for _, how := range slices.Sorted(maps.Keys(row.Starts)) {
			starts = append(starts, fmt.Sprintf("%s %d", how, row.Starts[how]))
		}
		fmt.Fprintf(b, " %s |\n", strings.Join(starts, ", "))
	}
}

// timesBare is how many times as long as the interpreter alone a row took.
func (r *Report) timesBare(row Row) string {
	for _, bare := range r.Rows {
		if bare.Subject == bareName && bare.Callers == row.Callers && bare.InARow == row.InARow && bare.Workload == row.Workload &&
			bare.Lang == row.Lang && bare.Done.P50 > 0 {
			return fmt.Sprintf("%.2f", row.Done.P50/bare.Done.P50)
		}
	}
	return "–"
}

// number shows milliseconds with as many digits as mean something.
func number(ms float64) string {
	switch {
	case ms < 10:
		return fmt.Sprintf("%.2f", ms)
	case ms < 1000:
		return fmt.Sprintf("%.1f", ms)
	}
	return fmt.Sprintf("%.0f", ms)
}

func optional(ms *float64) string {
	if ms == nil {
		return "–"
	}
	return number(*ms)
}

func mebibytes(bytes *int64) string {
	if bytes == nil {
		return "–"
	}
	return fmt.Sprintf("%.1f MiB", float64(*bytes)/(1<<20))
}

func (r *Report) memoryTable(b *strings.Builder) {
	m := r.Memory
	if m == nil {
		return
	}
	b.WriteString("\n| memory (proportional share) | |\n|---|---|\n")
	line := func(what string, bytes *int64) { fmt.Fprintf(b, "| %s | %s |\n", what, mebibytes(bytes)) }
	line("the server when it has started", m.Server)
	line("the server after the bursts", m.ServerAfter)
	if m.SparesMany > 0 {
		line(fmt.Sprintf("a template with pandas loaded and %d spares", m.SparesFew), &m.FewBytes)
		line(fmt.Sprintf("the same template and %d spares", m.SparesMany), &m.ManyBytes)
	}
	line("one more spare with pandas loaded", m.Spare)
	if m.Live > 0 {
		line(fmt.Sprintf("the server with %d live runs that sleep", m.Live), m.ServerLive)
		line("each of them, beside the server", m.SandboxLive)
	}
}

func (r *Report) barTable(b *strings.Builder) {
	if len(r.Bars) == 0 {
		return
	}
	b.WriteString("\n| must reach | bar | measured | |\n|---|---|---|---|\n")
	for _, bar := range r.Bars {
		measured, verdict := "–", "not measured"
		if bar.Measured != nil {
			measured = fmt.Sprintf("%.3g %s", *bar.Measured, bar.Unit)
			switch {
			case bar.Info:
				verdict = "for information"
			case bar.Pass:
				verdict = "PASS"
			default:
				verdict = "FAIL"
			}
		}
		limit := fmt.Sprintf("≤ %g %s", bar.Bar, bar.Unit)
		switch {
		case bar.Info:
			limit = "–"
		case bar.AtLeast:
			limit = fmt.Sprintf("≥ %g %s", bar.Bar, bar.Unit)
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", bar.What, limit, measured, verdict)
	}
}
