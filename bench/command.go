package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// environment is what every started program gets, as a sandbox of Glovebox gives it.
func environment() []string {
	return []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/tmp", "TMPDIR=/tmp", "LANG=C.UTF-8"}
}

// mostOutput bounds what is kept of a program's output to be compared.
const mostOutput = 64 << 10

// startCommand starts one command, reads its output to the end and waits for it.
func startCommand(ctx context.Context, dir string, argv []string) (o outcome) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, environment()
	cmd.SysProcAttr = session()
	// What is interrupted may take back what it made.
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, endLimit
	out := &timedBuffer{}
	said := &timedBuffer{}
	cmd.Stdout, cmd.Stderr = out, said
	out.started = time.Now()
	err := cmd.Run()
	o.done = time.Since(out.started)
	o.first, o.out = out.first, out.kept.Bytes()
	if usage := cmd.ProcessState; usage != nil {
		o.cpu = usage.UserTime() + usage.SystemTime()
	}
	if err != nil {
		o.err = fmt.Errorf("%s: %w: %.300s", filepath.Base(argv[0]), err, strings.TrimSpace(said.kept.String()))
	}
	return o
}

// endLimit is how long a command that is interrupted may take to end before it is killed.
const endLimit = 5 * time.Second

// session makes each command the first of a session: where the kernel shares CPUs out by session, as many do, a sandbox that
// begins one would get more of a busy machine than a command that does not.
func session() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// timedBuffer keeps the beginning of what is written to it and when that began.
type timedBuffer struct {
	started time.Time
	first   time.Duration
	bytes   int64
	kept    bytes.Buffer
}

// Write never fails.
func (b *timedBuffer) Write(p []byte) (int, error) {
	if b.bytes == 0 {
		b.first = time.Since(b.started)
	}
	b.bytes += int64(len(p))
	if room := mostOutput - b.kept.Len(); room > 0 {
		b.kept.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// interpreted is the command that runs code in a language.
func interpreted(program, lang, code string) []string {
	switch lang {
	case "python":
		return []string{program, "-I", "-c", code}
	case "bash":
		return []string{program, "--noprofile", "--norc", "-c", code}
	}
	return []string{program, "-e", code}
}

// found returns the path of a tool of the system, or nothing.
func found(name string) string {
	for _, dir := range []string{"/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	return ""
}

// companion is a started program that goes on beside the measurement.
type companion struct {
	cmd   *exec.Cmd
	said  *timedBuffer
	ended chan struct{} // closed when it has ended and said is whole
	err   error         // how it ended, after that
}

// startCompanion starts argv, which is killed when this process dies, however that happens.
func startCompanion(argv []string) (*companion, error) {
	p := &companion{cmd: exec.Command(argv[0], argv[1:]...), said: &timedBuffer{}, ended: make(chan struct{})}
	p.cmd.Env = environment()
	p.cmd.Stdout, p.cmd.Stderr = io.Discard, p.said
	p.cmd.SysProcAttr = session()
	p.cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
	started := make(chan error, 1)
	go p.watch(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// stop ends the process: it is asked first.
func (p *companion) stop(within time.Duration) error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.ended:
		return nil
	case <-timer.C:
	}
	err := p.cmd.Process.Kill()
	<-p.ended
	return errors.Join(fmt.Errorf("%s had not ended %v after it was asked to", p.cmd.Path, within), err)
}

func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// watch starts the process and waits for its end. The kernel ties the death of a parent to the thread that started the
// child, so this goroutine keeps one for as long as the child lives.
func (p *companion) watch(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.err = p.cmd.Wait()
	close(p.ended)
}
