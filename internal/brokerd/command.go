package brokerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"glovebox/internal/broker"
)

// Bounds of a source's command.
const (
	commandTime = 20 * time.Second
	commandPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// runCommand runs a secret's command, without a shell, and takes what it prints. What it says on its standard error may
// quote a value, so that nobody sees it.
func runCommand(ctx context.Context, spec broker.Spec, environ map[string]broker.Secret) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	env := []string{commandPath}
	for _, name := range spec.Pass {
		if v, ok := environ[name]; ok {
			env = append(env, name+"="+v.Reveal())
		}
	}
	out := bounded{most: maxValue}
	cmd := &exec.Cmd{Path: spec.Command[0], Args: spec.Command, Env: env, Dir: "/", Stdout: &out, WaitDelay: time.Second,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}}
	if err := cmd.Start(); err != nil {
		return "", unreadable(spec.Name, "see whether the program is there and may be executed",
			"its command cannot be started", err)
	}
	stop := context.AfterFunc(ctx, func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // with all that it started; it may just have ended
	})
	err := cmd.Wait()
	inTime := stop()
	defer clear(out.buf.Bytes())
	var exit *exec.ExitError
	switch {
	case !inTime:
		return "", unreadable(spec.Name, "make it faster: it is run when a request waits",
			fmt.Sprintf("its command did not end within %v", commandTime), nil)
	case out.over:
		return "", unreadable(spec.Name, "print the value alone", "its command printed more than 64 KiB", nil)
	case errors.As(err, &exit):
		return "", unreadable(spec.Name, "run it by hand as the user who runs glovebox",
			fmt.Sprintf("its command ended with %v", exit.ProcessState), nil)
	case err != nil:
		return "", unreadable(spec.Name, "run it by hand as the user who runs glovebox", "its command failed", err)
	}
	return out.buf.String(), nil
}

// bounded takes in the first of what is written, and the rest without keeping it.
type bounded struct {
	most int // bytes
	buf  bytes.Buffer
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if room := b.most - b.buf.Len(); len(p) > room {
		b.over = true
		b.buf.Write(p[:room])
	} else {
		b.buf.Write(p)
	}
	return len(p), nil
}
