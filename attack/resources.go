package attack

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"glovebox"
)

func clock(wall time.Duration) func(*laboratory, *glovebox.Request) {
	return func(_ *laboratory, r *glovebox.Request) { r.Limits.Wall = wall }
}

// resources are the programs about time and descriptors that exhaust nothing.
func resources() []Program {
	const dead = "nothing of it alive on the host"
	late := ends(glovebox.StatusWallLimit, -1, "wall")
	p := []Program{}
	for _, form := range []string{"front", "pipe", "trap"} {
		p = append(p, Program{ID: "RS-02/" + form, Axis: "RS", Tries: "sleeps past its wall clock: " + form, Judged: byStatus,
			file: "rs02_sleep.sh", args: words(form), ask: clock(time.Second), free: true, then: late})
	}
	for _, form := range []string{"setsid", "popen", "inner", "tee", "daemon", "deaf", "stopped", "writes"} {
		p = append(p, Program{ID: "RS-06/" + form, Axis: "RS", Tries: "leaves a child behind that holds its streams: " + form,
			Judged: dead, file: "rs06_detached.sh", args: words(form), free: true, then: ends(glovebox.StatusExited, 0, "")})
	}
	return append(p, []Program{
		{ID: "RS-07", Axis: "RS", Tries: "leaves a child behind that holds nothing", Judged: dead, file: "rs07_marker.sh"},
		{ID: "RS-09", Axis: "RS", Tries: "is deaf to every signal", Judged: byStatus, file: "rs09_deaf.py",
			ask:  clock(time.Second),
			free: true, then: late},
		{ID: "RS-10", Axis: "RS", Tries: "stops itself", Judged: byStatus, file: "stop_itself.sh",
			ask: clock(time.Second), free: true,
			then: late},
		{ID: "RS-24", Axis: "RS", Tries: "fills both streams in turn", Judged: "bytes counted", file: "rs24_both.py",
			free: true,
			then: all(ends(glovebox.StatusExited, 0, ""), printed(2<<20, 2<<20))},
		{ID: "RS-28", Axis: "RS", Tries: "closes its streams and works on", Judged: byStatus, file: "rs28_closed.py",
			free: true,
			then: all(ends(glovebox.StatusExited, 7, ""), collected("done"))},
		{ID: "RS-30", Axis: "RS", Tries: "reads nothing of a large input", Judged: byStatus, file: "rs30_unread.py",
			args: words("ignore"), free: true, then: ends(glovebox.StatusExited, 0, ""),
			ask: func(_ *laboratory, r *glovebox.Request) { r.StdinFrom = bytes.NewReader(make([]byte, 8<<20)) }},
		{ID: "RS-31", Axis: "RS", Tries: "waits for an input that nobody gives", Judged: "its end in time",
			file: "rs31_prompts.sh"},
		{ID: "RS-34", Axis: "RS", Tries: "leaves its control group", Judged: byLook, file: "hold.py", args: words("groups"),
			look: looks(inItsGroup, emptyHanded())},
		{ID: "RS-36", Axis: "RS", Tries: "raises its priority and its limits", Judged: byLook, file: "hold.py",
			args: words("priority"),
			ask:  func(_ *laboratory, r *glovebox.Request) { r.Limits.OpenFiles = 256 },
			look: ordinary(256)},
		{ID: "RS-47/alarm", Axis: "RS", Tries: "ends by its own alarm, as if by the clock", Judged: byStatus,
			file: "rs47_inner.py",
			args: words("alarm"), free: true, then: signaled("SIGALRM")},
		{ID: "RS-47/kill", Axis: "RS", Tries: "kills itself, as if for memory", Judged: byStatus, file: "rs47_inner.py",
			args: words("kill"), free: true, then: signaled("SIGKILL")},
		{ID: "RS-47/124", Axis: "RS", Tries: "exits and prints as if at a limit", Judged: byStatus, file: "rs47_inner.py",
			args: words("124"), free: true, then: ends(glovebox.StatusExited, 124, "")},
	}...)
}

// exhaustion are those that use up what they get.
func exhaustion() []Program {
	p := []Program{}
	add := func(id, tries, file string, args []string, limits glovebox.Limits, then func(*laboratory, *observed) []string) {
		p = append(p, Program{ID: id, Axis: id[:2], Tries: tries, Judged: byStatus + ", and the host's room",
			Disposable: true, free: true,
			file: file, args: words(args...), then: all(then, costs(1<<30)),
			ask: func(_ *laboratory, r *glovebox.Request) { r.Limits = limits }})
	}
	const memory, disk, files, many, loud = 96 * glovebox.MiB, 48 * glovebox.MiB, 2000, 48, 8 * glovebox.MiB
	bound := func(l glovebox.Limits) glovebox.Limits { l.Wall, l.View = wall, 16*glovebox.KiB; return l }
	add("RS-01", "spins for ever", "rs01_spin.py", nil, bound(glovebox.Limits{CPU: time.Second}),
		all(ends(glovebox.StatusCPULimit, -1, "cpu"), atMost("CPU time in ms", 3000, cpu)))
	add("RS-03", "doubles processes for ever", "rs03_forks.sh", nil, bound(glovebox.Limits{Processes: many}),
		all(ends(glovebox.StatusProcessLimit, -1, "processes"), atMost("the most processes", many, peak)))
	add("RS-05", "makes children until it can no more", "rs05_children.py", []string{"3"},
		bound(glovebox.Limits{Processes: many}),
		all(ends(glovebox.StatusProcessLimit, 3, "processes"), atMost("the most processes", many, peak)))
	for _, form := range []string{"alone", "child", "many", "shared", "memfd"} {
		add("RS-12/"+form, "takes memory for ever: "+form, "rs12_memory.py", []string{form},
			bound(glovebox.Limits{Memory: memory, Disk: 16 * glovebox.MiB}),
			all(ends(glovebox.StatusMemoryLimit, -1, "memory"), atMost("the most memory in bytes", int64(memory)*11/10,
				memoryPeak)))
	}
	for _, form := range []string{"threads", "turn"} {
		add("RS-20/"+form, "uses the CPU with many at once or in turn: "+form, "rs20_spinners.py", []string{form},
			bound(glovebox.Limits{CPU: time.Second}),
			all(ends(glovebox.StatusCPULimit, -1, "cpu"), atMost("CPU time in ms", 3000, cpu)))
	}
	for _, form := range []string{"stdout", "stderr"} {
		add("RS-23/"+form, "prints for ever: "+form, "rs23_flood.py", []string{form, strconv.Itoa(1 << 34)},
			bound(glovebox.Limits{Output: loud}), ends(glovebox.StatusOutputLimit, -1, "output"))
	}
	for _, size := range []int{1<<16 - 1, 1 << 16, 1<<16 + 1} {
		then := ends(glovebox.StatusExited, 4, "")
		if size > 1<<16 {
			then = ends(glovebox.StatusOutputLimit, -1, "output")
		}
		add(fmt.Sprintf("RS-26/%d", size), "prints to the edge of its limit of 65536 bytes", "rs23_flood.py",
			[]string{"stdout", strconv.Itoa(size)}, bound(glovebox.Limits{Output: 1 << 16}), all(then, printed(int64(size), 0)))
	}
	add("RS-33", "leaves children that nobody waits for", "rs33_zombies.py", nil, bound(glovebox.Limits{Processes: many}),
		atMost("the most processes", many, peak))
	add("RS-13", "fills what is shared memory", "fs22_fill.py", []string{"/dev/shm"}, bound(glovebox.Limits{Disk: disk}),
		all(ends(glovebox.StatusDiskLimit, 3, "disk"), atMost("bytes of files", int64(disk), diskUse)))
	add("FS-22", "fills every folder", "fs22_fill.py", []string{"/workspace", "/tmp", "/outputs", "/dev/shm"},
		bound(glovebox.Limits{Disk: disk}), all(ends(glovebox.StatusDiskLimit, 3, "disk"), atMost("bytes of files",
			int64(disk), diskUse)))
	add("FS-23", "makes names until it can no more", "fs23_inodes.py", []string{"/workspace"},
		bound(glovebox.Limits{Disk: disk, Files: files}), all(ends(glovebox.StatusDiskLimit, 3, "files"), losesFiles(2*files)))
	return p
}

func cpu(o *observed) *int64        { return o.result.Usage.CPUMS }
func peak(o *observed) *int64       { return o.result.Usage.ProcessesPeak }
func memoryPeak(o *observed) *int64 { return o.result.Usage.MemoryPeakBytes }
func diskUse(o *observed) *int64    { return o.result.Usage.DiskBytes }

// losesFiles demands that the host's disks lost no more names than this.
func losesFiles(most int64) func(*laboratory, *observed) []string {
	return func(_ *laboratory, o *observed) []string {
		if o.freed.files > most {
			return []string{fmt.Sprintf("the host's disks lost %d files", o.freed.files)}
		}
		return nil
	}
}

// printed demands the exact count of bytes of both streams.
func printed(stdout, stderr int64) func(*laboratory, *observed) []string {
	return func(_ *laboratory, o *observed) []string {
		if r := o.result; r.StdoutBytes != stdout || r.StderrBytes != stderr {
			return []string{fmt.Sprintf("%d and %d bytes are counted and not %d and %d", r.StdoutBytes, r.StderrBytes,
				stdout, stderr)}
		}
		return nil
	}
}

// signaled demands the end by a signal that the program sent itself.
func signaled(name string) func(*laboratory, *observed) []string {
	return all(ends(glovebox.StatusSignaled, -1, ""), func(_ *laboratory, o *observed) []string {
		if s := o.result.Signal; s == nil || *s != name {
			return []string{"the signal that ended it is not told as " + name}
		}
		return nil
	})
}
