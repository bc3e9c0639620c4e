package drivertest

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"time"

	"glovebox"
	"glovebox/driver"
)

// useCases meet each limit at its edge.
var useCases = map[string]func(*bench){
	"memory: 95 percent of the limit pass, of any kind":           caseMemoryMost,
	"memory: above the limit is killed and counted, of any kind":  caseMemoryAbove,
	"processes: threads count":                                    caseThreads,
	"processes: a bomb stays in its sandbox":                      caseBomb,
	"disk: the limit is met exactly, over all folders":            caseDiskExact,
	"disk: what has no name any more counts":                      caseDiskUnlinked,
	"files: the limit is met exactly":                             caseFilesExact,
	"descriptors: the limit is met exactly and cannot be raised":  caseDescriptorsExact,
	"cpus: half a CPU is half a CPU":                              caseHalfCPU,
	"cpus: as many are shown as were granted":                     caseShownCPUs,
	"counters only grow, fit the limits and outlive the tree":     caseCounters,
	"memory: a limit counts for its own sandbox alone":            caseMemoryApart,
	"output: a flood of both streams arrives whole":               caseFlood,
	"output: what nobody reads holds up nobody":                   caseUnread,
	"disk: a sandbox's room is its own, and is back when it ends": caseDiskFreed,
}

// edge is the memory of the cases at its edge: more than an interpreter's, little enough to be quick.
const edge = 128 * glovebox.MiB

// use runs the probe until it has so much memory of a kind, or is ended; it reports how it ended and what was counted.
func (b *bench) use(kind string, size glovebox.Size) (has bool, s driver.Sample) {
	b.Helper()
	r, e, _ := b.run(probe("alloc", kind, strconv.FormatInt(int64(size), 10)))
	s, err := r.Sample()
	if err != nil {
		b.Fatalf("sample: %v", err)
	}
	return e.Code == 0 && e.Signal == 0 && !e.Lost && strings.HasPrefix(r.out.String(), "has "), s
}

var kindsOfMemory = []string{"plain", "memfd", "children"}

func caseMemoryMost(b *bench) {
	b.limits.Memory = edge
	for _, kind := range kindsOfMemory {
		if has, s := b.use(kind, edge*95/100); !has || s.OOMKills != 0 {
			b.Errorf("%s: 95%% of %v: has it: %v, %+v", kind, edge, has, s)
		}
	}
}

func caseMemoryAbove(b *bench) {
	b.limits.Memory = edge
	for _, kind := range kindsOfMemory {
		// Twice the limit, since a program also counts the pages of files that it maps, and a kernel in user space those that it
		// keeps for it; neither are the run's.
		has, s := b.use(kind, 2*edge+b.driver.Overhead())
		if kind != "children" && has || s.OOMKills < 1 || s.OOMOutside > 0 {
			b.Errorf("%s: above %v: has it: %v, %+v", kind, edge, has, s)
		}
		// The kernel lets a charge that is under way pass by a few pages.
		if most := int64(edge + b.driver.Overhead()); s.MemoryPeak > most+1<<16 || s.MemoryPeak < int64(edge)*9/10 {
			b.Errorf("%s: peak is %d, with a limit of %d", kind, s.MemoryPeak, most)
		}
	}
}

// caseMemoryApart has one sandbox that is killed for memory beside one that is near its limit.
func caseMemoryApart(b *bench) {
	b.limits.Memory = edge
	size := strconv.FormatInt(int64(edge)*90/100, 10)
	r, lines := b.talk(b.start(), probe("alloc", "plain", size))
	b.await(lines, "has ")
	if has, s := b.use("plain", edge+b.driver.Overhead()+edge/5); has || s.OOMKills < 1 {
		b.Errorf("the greedy one: has it: %v, %+v", has, s)
	}
	r.hangUp()
	b.within("end of the modest one", r.Exited())
	if s, err := r.Sample(); err != nil || s.OOMKills != 0 || s.OOMOutside > 0 {
		b.Errorf("the modest one: %+v, %v", s, err)
	}
	b.wantExit(r.running, b.exit(r.running), 0)
}

func caseThreads(b *bench) {
	b.limits.Processes = 24
	r, e, _ := b.run(probe("thread", "100"))
	s, err := r.Sample()
	if err != nil || s.ForksRefused == 0 || s.ProcessesPeak > b.limits.Processes {
		b.Errorf("sample = %+v (%v), want a refused thread and no more than %d", s, err, b.limits.Processes)
	}
	if e.Code == 0 && e.Signal == 0 {
		b.Errorf("started 100 threads at a limit of %d: %s", b.limits.Processes, r.out.String())
	}
}

func caseBomb(b *bench) {
	b.limits.Processes = 32
	box := b.start()
	r := b.exec(box, shell("bomb() { bomb | bomb & }; bomb; sleep 1005"))
	time.Sleep(200 * time.Millisecond)
	begun := time.Now()
	b.said("spin", "1")
	if took := time.Since(begun); took > b.slack/2 {
		b.Errorf("a neighbour took %v", took)
	}
	s, err := r.Sample()
	for err == nil && s.ForksRefused == 0 && time.Since(begun) < b.slack { // a busy machine gives a bomb little time
		time.Sleep(20 * time.Millisecond)
		s, err = r.Sample()
	}
	if err != nil || s.ProcessesPeak > b.limits.Processes || s.ForksRefused == 0 {
		b.Errorf("sample = %+v (%v), want refused forks and no more than %d", s, err, b.limits.Processes)
	}
	if err := r.Kill(b.context()); err != nil {
		b.Fatalf("kill: %v", err)
	}
	if s, err := r.Sample(); err != nil || s.Processes > 0 {
		b.Errorf("after the kill: %+v (%v)", s, err)
	}
	b.within("end of the streams", waited(&r.read))
}

// written runs a filling of the probe, lets look at it while the file is open, and returns how much it wrote.
func (b *bench) written(box driver.Sandbox, kind, path string, most int, look func()) int {
	b.Helper()
	r, lines := b.talk(box, probe("fill", kind, path, strconv.Itoa(most)))
	var done int
	var why string
	if _, err := fmt.Sscan(b.await(lines, ""), &done, &why); err != nil {
		b.Fatal(err)
	}
	if done < most && why != "ENOSPC" {
		b.Errorf("writing to %s ended after %d with %s", path, done, why)
	}
	if look != nil {
		look()
	}
	r.hangUp()
	b.wantExit(r.running, b.exit(r.running), 0)
	return done
}

func caseDiskExact(b *bench) {
	b.limits.Disk = 4 * glovebox.MiB
	box, limit := b.start(), int(b.limits.Disk)
	total := 0
	for _, dir := range []string{"/workspace", "/tmp", "/outputs"} {
		most := limit / 3
		if dir == "/outputs" {
			most = 2 * limit
		}
		total += b.written(box, "named", dir+"/fill", most, nil)
	}
	// Shared memory is of the same room, or has as much of its own that counts as memory.
	if n := b.written(box, "named", "/dev/shm/fill", 2*limit, nil); n != 0 && (n > limit || n < limit*7/8) {
		b.Errorf("wrote %d to /dev/shm at a limit of %d", n, limit)
	}
	if total > limit || total < limit*7/8 {
		b.Errorf("wrote %d at a limit of %d", total, limit)
	}
	if use, err := box.Disk(); err != nil || use.FreeBytes != 0 || use.Used > int64(limit) || use.Used < int64(limit)*7/8 {
		b.Errorf("disk = %+v (%v) with a limit of %d", use, err, limit)
	}
}

func caseDiskUnlinked(b *bench) {
	b.limits.Disk = 4 * glovebox.MiB
	box, limit := b.start(), int(b.limits.Disk)
	n := b.written(box, "unlinked", "/workspace/gone", 4*limit, func() {
		if use, err := box.Disk(); err != nil || use.FreeBytes != 0 || use.Used < int64(limit)*7/8 {
			b.Errorf("disk = %+v (%v) while a file without a name fills it", use, err)
		}
	})
	if n > limit || n < limit*7/8 {
		b.Errorf("wrote %d at a limit of %d", n, limit)
	}
}

func caseDiskFreed(b *bench) {
	b.limits.Disk = 4 * glovebox.MiB
	box := b.start()
	b.written(box, "named", "/workspace/full", int(2*b.limits.Disk), nil)
	r, e, _ := b.run(shell("head -c 3000000 /dev/zero >/workspace/a")) // of another
	b.wantExit(r, e, 0)
	r = b.exec(box, shell("rm /workspace/full && head -c 3000000 /dev/zero >/workspace/b"))
	b.wantExit(r, b.exit(r), 0)
	if use, err := box.Disk(); err != nil || use.Used < 3000000 || use.FreeBytes == 0 || use.Used > 3500000 {
		b.Errorf("disk = %+v (%v), want 3,000,000 bytes", use, err)
	}
}

func caseFilesExact(b *bench) {
	b.limits.Files = 64
	r, e, box := b.run(probe("nodes", "/workspace", "1000"))
	b.wantExit(r, e, 0)
	var done int
	var why string
	if _, err := fmt.Sscan(r.out.String(), &done, &why); err != nil || why != "ENOSPC" || done > 64 || done < 48 {
		b.Errorf("%s: %v; want 48 to 64 and ENOSPC", r.out.String(), err)
	}
	if use, err := box.Disk(); err != nil || use.FreeFiles != 0 {
		b.Errorf("disk = %+v (%v), want no free files", use, err)
	}
}

func caseDescriptorsExact(b *bench) {
	b.limits.OpenFiles = 32
	lines := b.said("open", "1000")
	var done int
	var why string
	_, err := fmt.Sscan(lines[len(lines)-1], &done, &why)
	if err != nil || why != "EMFILE" || done > 29 || done < 24 || len(lines) != 1 {
		b.Errorf("%q: %v; want 24 to 29 more than three, and EMFILE", lines, err)
	}
}

func caseHalfCPU(b *bench) {
	b.limits.CPUs = 0.5
	r, e, _ := b.run(probe("spin", "700"))
	took := time.Since(r.Released())
	b.wantExit(r, e, 0)
	s, err := r.Sample()
	if err != nil || s.CPU > took/2+took/8+100*time.Millisecond || s.CPU <= 0 { // a busy machine gives less
		b.Errorf("used %v of CPU in %v (%v) with half a CPU", s.CPU, took, err)
	}
}

func caseShownCPUs(b *bench) {
	for n := 1; n <= min(2, runtime.NumCPU()); n++ {
		b.limits.CPUs = float64(n)
		if got := b.facts().one("cpus"); got != strconv.Itoa(n) {
			b.Errorf("%s CPUs are shown of %d", got, n)
		}
	}
}

func caseCounters(b *bench) {
	r := b.exec(b.start(), probe("tree"))
	var last driver.Sample
	check := func(when string) {
		s, err := r.Sample()
		if err != nil {
			b.Fatalf("sample %s: %v", when, err)
		}
		if s.CPU < last.CPU || s.MemoryPeak < last.MemoryPeak || s.ProcessesPeak < last.ProcessesPeak ||
			s.ForksRefused < last.ForksRefused || s.OOMKills < last.OOMKills {
			b.Errorf("%s: %+v fell to %+v", when, last, s)
		}
		most := int64(b.limits.Memory + b.driver.Overhead())
		if s.MemoryPeak > most || s.ProcessesPeak > b.limits.Processes || s.Memory > most || s.Processes > b.limits.Processes {
			b.Errorf("%s: %+v is above the limits", when, s)
		}
		last = s
	}
	for range 20 {
		check("while it lives")
		time.Sleep(10 * time.Millisecond)
	}
	if last.CPU <= 0 || last.ProcessesPeak == 0 || last.MemoryPeak == 0 {
		b.Errorf("after 200 ms: %+v", last)
	}
	if err := r.Kill(b.context()); err != nil {
		b.Fatalf("kill: %v", err)
	}
	check("after the kill")
	dead := last
	time.Sleep(20 * time.Millisecond)
	// What the dead used may be booked a moment late.
	if check("later"); last.CPU > dead.CPU+5*time.Millisecond || last.Processes > 0 {
		b.Errorf("dead it went on from %+v to %+v", dead, last)
	}
	b.within("end of the streams", waited(&r.read))
}

func caseFlood(b *bench) {
	const most = 12_345_678
	box := b.start()
	p, err := box.Exec(b.context(), probe("flood", strconv.Itoa(most)))
	if err != nil {
		b.Fatalf("exec: %v", err)
	}
	time.Sleep(50 * time.Millisecond) // both pipes are full by now
	r := b.reading(p)
	e := b.exitUnkilled(r)
	b.wantExit(r, e, 0)
	if r.out.Len() != most || r.err.Len() != most {
		b.Errorf("%d and %d bytes arrived of %d each", r.out.Len(), r.err.Len(), most)
	}
}

func caseUnread(b *bench) {
	box := b.start()
	p, err := box.Exec(b.context(), probe("flood", "100000000"))
	if err != nil {
		b.Fatalf("exec: %v", err)
	}
	time.Sleep(20 * time.Millisecond)
	if s, err := p.Sample(); err != nil || s.Memory > int64(b.limits.Memory+b.driver.Overhead()) {
		b.Errorf("sample = %+v, %v", s, err)
	}
	if err := p.Kill(b.context()); err != nil {
		b.Errorf("kill: %v", err)
	}
	b.within("leader's exit", p.Exited())
	if err := box.Close(b.context()); err != nil {
		b.Errorf("close: %v", err)
	}
}
