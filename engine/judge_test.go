package engine

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/driver"
)

var testLimits = glovebox.Limits{
	Wall: time.Minute, CPU: 30 * time.Second, CPUs: 1, Memory: 512 * glovebox.MiB, Disk: 256 * glovebox.MiB, Files: 20000,
	OpenFiles: 1024, Processes: 128, Egress: 100 * glovebox.MiB, Output: 64 * glovebox.KiB, View: 16 * glovebox.KiB,
}

func TestJudge(t *testing.T) {
	room := driver.DiskUse{FreeBytes: 1, FreeFiles: 1}
	sig := func(s syscall.Signal) driver.Exit { return driver.Exit{Signal: s} }
	code := func(c int) driver.Exit { return driver.Exit{Code: c} }
	oom := driver.Sample{OOMKills: 1}
	forks := driver.Sample{ForksRefused: 3}
	for _, tt := range []struct {
		name string
		f    facts
		want glovebox.Status
		hit  []string
	}{
		{"plain exit", facts{disk: room}, glovebox.StatusExited, nil},
		{"exit code", facts{disk: room, exit: code(3)}, glovebox.StatusExited, nil},
		{"signal", facts{disk: room, exit: sig(syscall.SIGSEGV)}, glovebox.StatusSignaled, nil},
		{"own SIGKILL is a signal", facts{disk: room, exit: sig(syscall.SIGKILL)}, glovebox.StatusSignaled, nil},
		{"own SIGXCPU is a signal", facts{disk: room, exit: sig(syscall.SIGXCPU)}, glovebox.StatusSignaled, nil},
		{"SIGALRM is a signal", facts{disk: room, exit: sig(syscall.SIGALRM)}, glovebox.StatusSignaled, nil},
		{"exit 124 is an exit", facts{disk: room, exit: code(124)}, glovebox.StatusExited, nil},
		{"wall", facts{disk: room, killed: glovebox.StatusWallLimit, exit: sig(syscall.SIGKILL)},
			glovebox.StatusWallLimit, []string{"wall"}},
		{"wall after refused threads", facts{disk: room, killed: glovebox.StatusWallLimit, exit: sig(syscall.SIGKILL), sample: forks},
			glovebox.StatusWallLimit, []string{"wall", "processes"}},
		{"own kill before an exit that was on its way", facts{disk: room, killed: glovebox.StatusCanceled},
			glovebox.StatusCanceled, nil},
		{"own kill before memory", facts{disk: room, killed: glovebox.StatusCanceled, exit: sig(syscall.SIGKILL), sample: oom},
			glovebox.StatusCanceled, nil},
		{"own kill before a lost sandbox", facts{disk: room, killed: glovebox.StatusCPULimit, exit: driver.Exit{Lost: true}},
			glovebox.StatusCPULimit, []string{"cpu"}},
		{"memory before exit 0", facts{disk: room, sample: oom}, glovebox.StatusMemoryLimit, []string{"memory"}},
		{"memory before a lost sandbox", facts{disk: room, exit: driver.Exit{Lost: true}, sample: oom},
			glovebox.StatusMemoryLimit, []string{"memory"}},
		{"memory before output", facts{disk: room, exceeded: true, sample: oom}, glovebox.StatusMemoryLimit, []string{"memory"}},
		{"output read after exit 0", facts{disk: room, exceeded: true}, glovebox.StatusOutputLimit, []string{"output"}},
		{"forks refused and exit 0", facts{disk: room, sample: forks}, glovebox.StatusExited, []string{"processes"}},
		{"forks refused and exit 1", facts{disk: room, sample: forks, exit: code(1)},
			glovebox.StatusProcessLimit, []string{"processes"}},
		{"forks refused and a signal", facts{disk: room, sample: forks, exit: sig(syscall.SIGABRT)},
			glovebox.StatusProcessLimit, []string{"processes"}},
		{"disk full and exit 0", facts{disk: driver.DiskUse{FreeFiles: 1}}, glovebox.StatusExited, []string{"disk"}},
		{"disk full and exit 1", facts{disk: driver.DiskUse{FreeFiles: 1}, exit: code(1)},
			glovebox.StatusDiskLimit, []string{"disk"}},
		{"no inodes and exit 1", facts{disk: driver.DiskUse{FreeBytes: 1}, exit: code(1)},
			glovebox.StatusDiskLimit, []string{"files"}},
		{"processes before disk", facts{sample: forks, exit: code(1)},
			glovebox.StatusProcessLimit, []string{"processes", "disk", "files"}},
		{"fence", facts{disk: room, exit: driver.Exit{Signal: syscall.SIGSYS, FenceKill: true}}, glovebox.StatusPolicy, nil},
		{"SIGSYS without the fence", facts{disk: room, exit: sig(syscall.SIGSYS)}, glovebox.StatusSignaled, nil},
		{"out of memory elsewhere and a plain exit", facts{disk: room, sample: driver.Sample{OOMOutside: 1}},
			glovebox.StatusExited, nil},
		{"not started", facts{disk: room, exit: driver.Exit{Code: 127, NotStarted: "no such file"}}, glovebox.StatusExited, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v, err := judge(tt.f, testLimits)
			if err != nil || v.status != tt.want {
				t.Fatalf("judge = %v, %v, want %v", v.status, err, tt.want)
			}
			if d := cmp.Diff(append([]string{}, tt.hit...), v.hit); d != "" {
				t.Errorf("limits hit (-want +got):\n%s", d)
			}
			plain := v.status == glovebox.StatusExited && tt.f.exit.NotStarted == ""
			if (v.reason == "") != plain {
				t.Errorf("reason = %q", v.reason)
			}
			if v.code != nil && v.signal != nil {
				t.Errorf("both code %d and signal %s", *v.code, *v.signal)
			}
		})
	}
}

func TestJudgeBlamesTheMachine(t *testing.T) {
	for name, f := range map[string]facts{
		"lost":                    {exit: driver.Exit{Lost: true}},
		"killed from outside":     {exit: driver.Exit{Signal: syscall.SIGKILL}, sample: driver.Sample{OOMOutside: 1}},
		"lost with forks refused": {exit: driver.Exit{Lost: true}, sample: driver.Sample{ForksRefused: 1}},
	} {
		_, err := judge(f, testLimits)
		var e *glovebox.Error
		if !errors.As(err, &e) || e.Code != glovebox.CodeInternal || e.Fix == "" {
			t.Errorf("%s: error = %v, want internal with a fix", name, err)
		}
	}
}
