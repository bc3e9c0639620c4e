package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"glovebox/internal/kernelfile"
)

// Sample is a reading of a group's counters. A field below zero is unknown on this kernel.
type Sample struct {
	CPU           time.Duration // user and system time of the living and the dead
	Memory        int64         // bytes now
	MemoryPeak    int64         // bytes
	Processes     int64         // processes and threads now
	ProcessesPeak int64
	OOMKills      int64 // processes that the kernel killed for memory at the group's own limit
	// OOMOutside counts those that it killed at another limit, of a group above or of the machine. In version 1 that is
	// told from the group never having touched its own limit; of one that has, every kill counts as its own.
	OOMOutside   int64
	ForksRefused int64 // attempts to go past the limit of processes
}

// Processes is how many processes and threads there are now, those among them that are dead and not reaped; below zero where
// the kernel does not tell.
func (g *Group) Processes() (int64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return 0, fmt.Errorf("sample control group: %w", os.ErrClosed)
	}
	r := reader{g: g}
	n := r.number(g.host.places["pids"], "pids.current")
	return n, r.err
}

// Sample reads the counters. It is cheap, as descriptors stay open, and works until Close or Remove.
func (g *Group) Sample() (Sample, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return Sample{}, fmt.Errorf("sample control group: %w", os.ErrClosed)
	}
	r := reader{g: g}
	s := Sample{CPU: r.cpuTime()}
	memory, pids := g.host.places["memory"], g.host.places["pids"]
	if memory.v2 {
		s.Memory, s.MemoryPeak = r.number(memory, "memory.current"), r.number(memory, "memory.peak")
		kills, own := r.field(memory, "memory.events", "oom_kill"), r.field(memory, "memory.events", "oom")
		s.OOMKills, s.OOMOutside = blame(kills, own)
	} else {
		s.Memory = r.number(memory, "memory.usage_in_bytes")
		s.MemoryPeak = r.number(memory, "memory.max_usage_in_bytes")
		kills := r.field(memory, "memory.oom_control", "oom_kill")
		s.OOMKills, s.OOMOutside = blame(kills, g.touched(&r, memory, s.MemoryPeak))
	}
	s.Processes, s.ProcessesPeak = r.number(pids, "pids.current"), r.number(pids, "pids.peak")
	s.ForksRefused = r.field(pids, "pids.events", "max")
	return s, r.err
}

// blame tells kills at the own limit from the others, by how often the own limit was met.
func blame(kills, own int64) (inside, outside int64) {
	switch {
	case kills < 0:
		return -1, -1
	case own == 0:
		return 0, kills
	case own < 0 && kills > 0:
		return kills, -1
	}
	return kills, 0
}

// touched tells how often a version 1 group met its own limit, if only 0 or more than 0: by its peak, because newer kernels
// no longer count failures. The kernel kills a little short of the limit when what was asked for is larger than a page.
func (g *Group) touched(r *reader, memory place, peak int64) int64 {
	const short = 1 << 20
	if peak < 0 {
		return -1
	}
	if peak > g.memory-short {
		return 1
	}
	return max(0, r.number(memory, "memory.failcnt"))
}

// reader reads a group's counters and keeps the first error. What a kernel does not have reads as -1 and is no error.
type reader struct {
	g   *Group
	err error
}

func (r *reader) cpuTime() time.Duration {
	if p, ok := r.g.host.places["cpuacct"]; ok && !p.v2 {
		return time.Duration(r.number(p, "cpuacct.usage"))
	}
	if r.g.host.unified == nil {
		return -1
	}
	us := r.field(*r.g.host.unified, "cpu.stat", "usage_usec")
	if us < 0 {
		return -1
	}
	return time.Duration(min(us, math.MaxInt64/1000)) * time.Microsecond
}

func (r *reader) number(p place, file string) int64 {
	text, ok := r.text(p, file)
	if !ok {
		return -1
	}
	n, err := number(text)
	if err != nil {
		r.err = errors.Join(r.err, fmt.Errorf("sample control group: %s: %w", file, err))
		return -1
	}
	return n
}

func (r *reader) field(p place, file, key string) int64 {
	text, ok := r.text(p, file)
	if !ok {
		return -1
	}
	n, ok := field(text, key)
	if !ok {
		return -1
	}
	return n
}

// text reads a counter from its start through a descriptor that is opened once.
func (r *reader) text(p place, file string) (string, bool) {
	dir, ok := r.g.dirs[p]
	if !ok {
		return "", false
	}
	path := filepath.Join(dir, file)
	f, opened := r.g.meters[path]
	if !opened {
		var err error
		if f, err = kernelfile.Open(path); err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				r.err = errors.Join(r.err, fmt.Errorf("sample control group: %w", err))
				return "", false
			}
			f = nil
		}
		r.g.meters[path] = f
	}
	if f == nil {
		return "", false
	}
	text, err := f.Read()
	if err != nil {
		r.err = errors.Join(r.err, fmt.Errorf("sample control group: %w", err))
		return "", false
	}
	return text, true
}

// Limits are the limits in force, read back from the kernel: "memory" and "swap" in bytes, "pids", "cpu" in CPUs, "cpuset"
// as a list of CPUs, and on version 1 "sockets" in bytes beside the memory. A limit that is not controlled is not there;
// "swap" is "none" when neither a limit nor swap exists.
func (g *Group) Limits() (map[string]string, error) {
	in := map[string]string{}
	var err error
	get := func(p place, file string) (int64, bool) {
		text, e := read(g.dirs[p], file)
		if e == nil {
			var n int64
			if n, e = number(text); e == nil {
				return n, true
			}
		}
		if !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("read limits of control group: %s: %w", file, e))
		}
		return 0, false
	}
	memory, pids := g.host.places["memory"], g.host.places["pids"]
	limit, swap := "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
	if memory.v2 {
		limit, swap = "memory.max", "memory.swap.max"
	}
	bytes, ok := get(memory, limit)
	if ok {
		in["memory"] = strconv.FormatInt(bytes, 10)
	}
	if extra, ok := get(memory, swap); ok {
		if !memory.v2 {
			extra -= bytes
		}
		in["swap"] = strconv.FormatInt(extra, 10)
	} else if !g.host.swapping() {
		in["swap"] = "none"
	}
	if !memory.v2 {
		if n, ok := get(memory, "memory.kmem.tcp.limit_in_bytes"); ok {
			in["sockets"] = strconv.FormatInt(n, 10)
		}
	}
	if n, ok := get(pids, "pids.max"); ok {
		in["pids"] = strconv.FormatInt(n, 10)
	}
	g.limitsCPU(in, get)
	return in, err
}

func (g *Group) limitsCPU(in map[string]string, get func(place, string) (int64, bool)) {
	cpu := g.host.places["cpu"]
	var quota, window int64
	var ok bool
	if cpu.v2 {
		text, _ := read(g.dirs[cpu], "cpu.max")
		q, w, _ := strings.Cut(text, " ")
		var errQ, errW error
		quota, errQ = number(q)
		window, errW = number(w)
		ok = errQ == nil && errW == nil && quota != math.MaxInt64
	} else {
		quota, ok = get(cpu, "cpu.cfs_quota_us")
		if ok {
			window, ok = get(cpu, "cpu.cfs_period_us")
		}
	}
	if ok && window > 0 {
		in["cpu"] = strconv.FormatFloat(float64(quota)/float64(window), 'f', -1, 64)
	}
	if p, ok := g.cpuset(); ok {
		file := "cpuset.cpus"
		if p.v2 {
			file = "cpuset.cpus.effective"
		}
		if list, err := read(g.dirs[p], file); err == nil && list != "" {
			in["cpuset"] = list
		}
	}
}
