package drivertest

import (
	"fmt"
	"strings"
	"time"

	"glovebox"
)

// limitCases are about what the driver enforces itself; wall clock, CPU time and output are its user's to enforce.
var limitCases = map[string]func(*bench){
	"memory: the kernel kills and it is counted":       caseMemory,
	"memory: just below the limit is fine":             caseMemoryBelow,
	"processes: a fork is refused and it is counted":   caseProcesses,
	"disk: full is seen as no free bytes":              caseDisk,
	"files: full is seen as no free files":             caseFiles,
	"descriptors: one more is refused":                 caseOpenFiles,
	"cpus: bandwidth and the number shown are bounded": caseCPUs,
}

func caseMemory(b *bench) {
	b.limits.Memory = 96 * glovebox.MiB // a workspace in memory fits beside it
	r, _, _ := b.run(shell("head -c 300000000 /dev/zero | tail -n 1 >/dev/null; exit 0"))
	s, err := r.Sample()
	if err != nil || s.OOMKills < 1 || s.OOMOutside > 0 {
		b.Errorf("sample = %+v (%v), want a kill at the tree's own limit", s, err)
	}
	if s.MemoryPeak > int64(b.limits.Memory) {
		b.Errorf("peak = %d, above the limit %d", s.MemoryPeak, b.limits.Memory)
	}
}

func caseMemoryBelow(b *bench) {
	b.limits.Memory = 96 * glovebox.MiB // a workspace in memory fits beside it
	r, e, _ := b.run(shell("head -c 20000000 /dev/zero | tail -n 1 >/dev/null"))
	b.wantExit(r, e, 0)
	if s, err := r.Sample(); err != nil || s.OOMKills != 0 {
		b.Errorf("sample = %+v (%v), want no kill", s, err)
	}
}

func caseProcesses(b *bench) {
	b.limits.Processes = 16
	r, _, _ := b.run(shell("i=0; while [ $i -lt 40 ]; do sleep 5 & i=$((i+1)); done; exit 0"))
	s, err := r.Sample()
	if err != nil || s.ForksRefused < 1 {
		b.Errorf("sample = %+v (%v), want a refused fork", s, err)
	}
	if s.ProcessesPeak > b.limits.Processes {
		b.Errorf("peak = %d, above the limit %d", s.ProcessesPeak, b.limits.Processes)
	}
}

func caseDisk(b *bench) {
	b.limits.Disk = 2 * glovebox.MiB
	r, e, box := b.run(shell("head -c 1000000 /dev/zero >/workspace/a && ! head -c 8000000 /dev/zero >/outputs/b"))
	b.wantExit(r, e, 0)
	use, err := box.Disk()
	if err != nil || use.FreeBytes != 0 || use.Used < int64(b.limits.Disk)/2 || use.Used > int64(b.limits.Disk) {
		b.Errorf("disk = %+v (%v), want it full at %v", use, err, b.limits.Disk)
	}
}

func caseFiles(b *bench) {
	b.limits.Files = 64
	r, e, box := b.run(shell("i=0; while [ $i -lt 200 ]; do : >/workspace/$i || exit 9; i=$((i+1)); done"))
	if e.Code == 0 && e.Signal == 0 {
		b.Errorf("made 200 files at a limit of 64; stderr %q", r.err.String())
	}
	if use, err := box.Disk(); err != nil || use.FreeFiles != 0 {
		b.Errorf("disk = %+v (%v), want no free files", use, err)
	}
}

func caseOpenFiles(b *bench) {
	b.limits.OpenFiles = 32
	r, e, _ := b.run(shell("ulimit -n; ulimit -Hn"))
	b.wantExit(r, e, 0)
	if got := r.out.String(); got != "32\n32\n" {
		b.Errorf("limits of descriptors = %q, want 32 twice", got)
	}
}

func caseCPUs(b *bench) {
	r, e, _ := b.run(shell(fmt.Sprintf("nproc; (%s) & %s; wait", scriptBusy, scriptBusy)))
	took := time.Since(r.Released())
	b.wantExit(r, e, 0)
	if got := strings.TrimSpace(r.out.String()); got != "1" {
		b.Errorf("nproc = %s, want 1", got)
	}
	s, err := r.Sample()
	if err != nil || s.CPU > took+took/4+100*time.Millisecond {
		b.Errorf("used %v of CPU in %v (%v) with 1 CPU", s.CPU, took, err)
	}
}
