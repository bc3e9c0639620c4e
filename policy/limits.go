package policy

import (
	"fmt"
	"math"
	"time"

	"glovebox"
)

// Limits are what a request gets when it names no limit, and the most that it may ask for. A zero field is the built-in
// value; a built-in default above a configured ceiling is lowered to it.
type Limits struct {
	Default glovebox.Limits
	Ceiling glovebox.Limits
}

const day = 24 * time.Hour

// Built-in bounds. Below the least a program cannot start or the limit has no meaning to the kernel; above the most a
// ceiling cannot be set, so that no sum or scaling of limits overflows.
var (
	least = glovebox.Limits{
		Wall: 10 * time.Millisecond, CPU: 10 * time.Millisecond, CPUs: 0.01, Memory: 8 * glovebox.MiB,
		Disk: 64 * glovebox.KiB, Files: 16, OpenFiles: 16, Processes: 1, Egress: 1, Output: 1, View: 256,
	}
	builtInDefault = glovebox.Limits{
		Wall: 60 * time.Second, CPU: 30 * time.Second, CPUs: 1, Memory: 512 * glovebox.MiB, Disk: 256 * glovebox.MiB,
		Files: 20000, OpenFiles: 1024, Processes: 128, Egress: 100 * glovebox.MiB, Output: 64 * glovebox.MiB,
		View: 16 * glovebox.KiB,
	}
	builtInCeiling = glovebox.Limits{
		Wall: time.Hour, CPU: time.Hour, CPUs: 64, Memory: 64 * glovebox.GiB, Disk: 64 * glovebox.GiB, Files: 5e6,
		OpenFiles: 65536, Processes: 32768, Egress: 10 * glovebox.GiB, Output: 16 * glovebox.GiB, View: glovebox.MiB,
	}
	most = glovebox.Limits{
		Wall: 366 * day, CPU: 366 * day, CPUs: 4096, Memory: 1024 * glovebox.TiB, Disk: 1024 * glovebox.TiB, Files: 1e12,
		OpenFiles: 1 << 20, Processes: 1 << 22, Egress: 1024 * glovebox.TiB, Output: 1024 * glovebox.TiB,
		View: 16 * glovebox.MiB,
	}
)

// limitNames are the limits as configuration spells them, in the order of cells.
var limitNames = []string{
	"wall", "cpu", "cpus", "memory", "disk", "files", "open_files", "processes", "egress", "output", "view",
}

// limitFlags are the same as the command line spells them.
var limitFlags = []string{
	"--wall", "--cpu", "--cpus", "--memory", "--disk", "--files", "--open-files", "--processes", "--egress-limit",
	"--output-limit", "--view-limit",
}

// cells are the fields of l, so that each limit is treated by the same lines: none can be forgotten.
func cells(l *glovebox.Limits) []cell {
	duration := func(d *time.Duration) cell {
		return cell{whole: (*int64)(d), show: func(n int64) string { return time.Duration(n).String() }}
	}
	size := func(s *glovebox.Size) cell {
		return cell{whole: (*int64)(s), show: func(n int64) string {
			if n < 0 {
				return fmt.Sprintf("%dB", n)
			}
			return glovebox.Size(n).String()
		}}
	}
	count := func(n *int64) cell { return cell{whole: n, show: func(n int64) string { return fmt.Sprint(n) }} }
	return []cell{
		duration(&l.Wall), duration(&l.CPU), {part: &l.CPUs}, size(&l.Memory), size(&l.Disk), count(&l.Files),
		count(&l.OpenFiles), count(&l.Processes), size(&l.Egress), size(&l.Output), size(&l.View),
	}
}

// fixed are the cells of a copy: the built-in limits themselves cannot be set through them.
func fixed(l glovebox.Limits) []cell { return cells(&l) }

// cell is one limit: a whole number, or a fraction when part is set.
type cell struct {
	whole *int64
	part  *float64
	show  func(int64) string
}

func (c cell) String() string {
	if c.part != nil {
		return fmt.Sprintf("%g", *c.part)
	}
	return c.show(*c.whole)
}

// finite is false for what is no amount at all.
func (c cell) finite() bool { return c.part == nil || !math.IsNaN(*c.part) && !math.IsInf(*c.part, 0) }

func (c cell) zero() bool {
	if c.part != nil {
		return *c.part == 0
	}
	return *c.whole == 0
}

func (c cell) below(other cell) bool {
	if c.part != nil {
		return *c.part < *other.part
	}
	return *c.whole < *other.whole
}

func (c cell) set(from cell) {
	if c.part != nil {
		*c.part = *from.part
		return
	}
	*c.whole = *from.whole
}

// complete fills in the built-in values and checks every field against the least and the most.
func (l Limits) complete() (Limits, error) {
	low, high := fixed(least), fixed(most)
	builtDefault, builtCeiling := fixed(builtInDefault), fixed(builtInCeiling)
	def, ceil := cells(&l.Default), cells(&l.Ceiling)
	for i, name := range limitNames {
		if err := inRange("limits.default."+name, def[i], low[i], high[i]); err != nil {
			return Limits{}, err
		}
		if err := inRange("limits.ceiling."+name, ceil[i], low[i], high[i]); err != nil {
			return Limits{}, err
		}
		if ceil[i].zero() {
			ceil[i].set(builtCeiling[i])
			if ceil[i].below(def[i]) {
				return Limits{}, badKey("limits.default."+name, fmt.Sprintf("lower it, or set policy.limits.ceiling.%s too", name),
					"%s is above the built-in ceiling of %s", def[i], ceil[i])
			}
		}
		switch {
		case def[i].zero():
			def[i].set(builtDefault[i])
			if ceil[i].below(def[i]) {
				def[i].set(ceil[i])
			}
		case ceil[i].below(def[i]):
			return Limits{}, badKey("limits.default."+name, "lower the default or raise the ceiling",
				"%s is above the ceiling of %s", def[i], ceil[i])
		}
	}
	return l, nil
}

// inRange demands an amount between low and high, or nothing.
func inRange(key string, c, low, high cell) error {
	if c.zero() || c.finite() && !c.below(low) && !high.below(c) {
		return nil
	}
	return badKey(key, fmt.Sprintf("set it to %s at least and %s at most", low, high), "%s is out of range", c)
}

// grant fills in what was left out and refuses what is malformed or above a ceiling. Each limit is judged by itself.
func (l Limits) grant(asked glovebox.Limits) (glovebox.Limits, *glovebox.Decision) {
	free := asked.Disk == 0
	want, low, def, ceil := cells(&asked), fixed(least), cells(&l.Default), cells(&l.Ceiling)
	for i, c := range want {
		flag := limitFlags[i]
		switch {
		case !c.finite():
			return glovebox.Limits{}, invalid(fmt.Sprintf("say %s %s, or leave it out for that default", flag, def[i]),
				"%s %s is no amount", flag, c)
		case c.zero():
			c.set(def[i])
		case c.below(low[i]):
			return glovebox.Limits{}, invalid(
				fmt.Sprintf("ask for at least %s %s, or leave it out for the default of %s", flag, low[i], def[i]),
				"%s %s is below the least that works, %s", flag, c, low[i])
		case ceil[i].below(c):
			return glovebox.Limits{}, refuse("limit.ceiling", glovebox.CodeDenied,
				fmt.Sprintf("ask for at most %s %s, or have the operator raise policy.limits.ceiling.%s", flag, ceil[i], limitNames[i]),
				"%s %s is above the ceiling of %s", flag, c, ceil[i])
		}
	}
	// A default disk gives way to a small memory limit: asking for less of one thing should not call for another kind of
	// workspace.
	if room := asked.Memory - glovebox.MemoryBesideDisk; free && room >= glovebox.MiB && asked.Disk > room {
		asked.Disk = room
	}
	return asked, nil
}
