package bench

import "fmt"

// Bar is something that Glovebox must reach, wherever it runs: a ratio of two things that were measured side by side, or an
// amount of memory.
type Bar struct {
	What     string   `json:"what"`
	Unit     string   `json:"unit"`
	Bar      float64  `json:"bar"`
	AtLeast  bool     `json:"at_least"` // else at most
	Measured *float64 `json:"measured"` // nil when one of both was not measured
	Pass     bool     `json:"pass"`
	Info     bool     `json:"info"` // there is no bar: Bar, AtLeast and Pass mean nothing
}

// bars compares a report with what must be reached. Ratios of times are ratios of medians, with one caller of subjects that
// took turns. Glovebox is asked for the process rung and nothing above it.
func bars(r *Report) []Bar {
	if len(r.Growth) > 0 {
		return nil
	}
	const atLeast, atMost = true, false
	first := func(row *Row) float64 { return row.First.P50 }
	done := func(row *Row) float64 { return row.Done.P50 }
	rate := func(row *Row) float64 { return row.PerSecond }
	ratio := func(a, b *Row, of, to func(*Row) float64) *float64 {
		if a == nil || b == nil || to(b) <= 0 || of(a) <= 0 {
			return nil
		}
		return new(of(a) / to(b))
	}
	warm, bare := r.row(warmName, "print", 1), r.row(bareName, "print", 1)
	rowWarm, rowBare := r.find(warmName, "print", 1, true), r.find(bareName, "print", 1, true)
	all := []Bar{
		bar("warm print: first byte, by the whole time of the bare interpreter", "×", 0.15, atMost,
			ratio(warm, bare, first, done)),
		bar("warm print: end, by the same", "×", 0.35, atMost, ratio(warm, bare, done, done)),
		info("warm print in a row: first byte, by the whole time of the bare interpreter in a row", "×",
			ratio(rowWarm, rowBare, first, done)),
		info("warm print in a row: end, by the same", "×", ratio(rowWarm, rowBare, done, done)),
		bar("warm pandas: end, by the same", "×", 0.15, atMost,
			ratio(r.row(warmName, "pandas", 1), r.row(bareName, "pandas", 1), done, done)),
		bar("cold print, the whole command: end, by bubblewrap", "×", 1.3, atMost,
			ratio(r.row(coldName, "print", 1), r.row(bwrapName, "print", 1), done, done)),
		bar("print, 10 callers: runs per second, by bubblewrap", "×", 2, atLeast,
			ratio(r.row(warmName, "print", 10), r.row(bwrapName, "print", 10), rate, rate)),
		bar("pandas, 10 callers: runs per second, by bubblewrap", "×", 8, atLeast,
			ratio(r.row(warmName, "pandas", 10), r.row(bwrapName, "pandas", 10), rate, rate)),
	}
	crowd := r.row(warmName, "print", floodCallers)
	p99 := bar(fmt.Sprintf("print, %d callers: 99th percentile, by the median", floodCallers), "×", 5, atMost,
		ratio(crowd, crowd, func(row *Row) float64 { return row.Done.P99 }, done))
	var bad *float64
	if crowd != nil {
		p99.What = fmt.Sprintf("print, %d callers, %d runs: 99th percentile, by the median", floodCallers, crowd.Runs)
		bad = new(float64(crowd.Failed + crowd.Wrong + crowd.Lost))
	}
	all = append(all, p99, bar("the same: runs that failed, were wrong or were lost", "", 0, atMost, bad))
	var spare, server *float64
	what := "memory of the server with 100 live runs"
	if m := r.Memory; m != nil {
		spare, server = inMiB(m.Spare), inMiB(m.ServerLive)
		if m.Live > 0 {
			what = fmt.Sprintf("memory of the server with %d live runs", m.Live)
		}
	}
	return append(all, bar("memory of a spare with pandas loaded", "MiB", 12, atMost, spare),
		bar(what, "MiB", 80, atMost, server))
}

func bar(what, unit string, limit float64, atLeast bool, measured *float64) Bar {
	b := Bar{What: what, Unit: unit, Bar: limit, AtLeast: atLeast, Measured: measured}
	if measured != nil {
		b.Pass = *measured <= limit
		if atLeast {
			b.Pass = *measured >= limit
		}
	}
	return b
}

// info is what is told beside the bars.
func info(what, unit string, measured *float64) Bar {
	return Bar{What: what, Unit: unit, Measured: measured, Info: true}
}

func inMiB(bytes *int64) *float64 {
	if bytes == nil {
		return nil
	}
	return new(float64(*bytes) / (1 << 20))
}
