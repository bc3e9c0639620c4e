package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"glovebox"
)

// How long a broker may take to start and to end.
const (
	startTime = 10 * time.Second
	endTime   = 5 * time.Second
)

// process is a broker that was started.
type process struct {
	cmd     *exec.Cmd
	control *net.UnixConn
	admin   *http.Transport
	ended   chan struct{} // it ended, whatever ended it
	lost    atomic.Bool   // it does not answer
	closing sync.Once
}

// start starts a broker: with nothing in its arguments, an empty environment, and one socket.
func start(ctx context.Context, cfg Config) (*process, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	control, theirs, err := pair(syscall.SOCK_SEQPACKET)
	if err != nil {
		return nil, glovebox.Internal("start the broker", err)
	}
	defer theirs.Close()
	p := &process{control: control, ended: make(chan struct{})}
	p.admin = p.transport(Opening{Kind: StreamAdmin})
	p.cmd = &exec.Cmd{Path: cfg.Program, Args: []string{"glovebox-broker"}, Env: []string{}, Dir: "/",
		ExtraFiles: []*os.File{theirs}, Stderr: &lines{log: cfg.Log}, WaitDelay: time.Second,
		// A key that is typed to end a command is not for it: it ends when the socket does.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true}}
	if err := p.cmd.Start(); err != nil {
		control.Close()
		return nil, absent(err)
	}
	go func() {
		defer close(p.ended)
		if err := p.cmd.Wait(); err != nil {
			cfg.Log.Warn("the broker ended", "err", err)
		}
		control.Close() // nobody is at the other end
	}()
	if err := p.setup(ctx, cfg); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// pair makes two connected sockets; the second is for the other process.
func pair(kind int) (mine *net.UnixConn, theirs *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, kind|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	own := os.NewFile(uintptr(fds[0]), "broker")
	theirs = os.NewFile(uintptr(fds[1]), "client")
	defer own.Close() // FileConn has a copy
	c, err := net.FileConn(own)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return c.(*net.UnixConn), theirs, nil
}

// open makes a stream to the broker.
func (p *process) open(o Opening) (*net.UnixConn, error) {
	mine, theirs, err := pair(syscall.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	if err := SendOpening(p.control, o, theirs); err != nil {
		mine.Close()
		return nil, err
	}
	return mine, nil
}

// setup tells the broker what it needs and waits until it serves.
func (p *process) setup(ctx context.Context, cfg Config) error {
	stream, err := p.open(Opening{Kind: StreamSetup})
	if err != nil {
		return p.gone(ctx, err)
	}
	defer stream.Close()
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	defer stop()
	all := Setup{Secrets: cfg.Secrets, Actions: cfg.Actions, Environ: cfg.Environ,
		Network: cfg.Network, Roots: cfg.Roots, Dir: cfg.Dir}
	b, err := all.encode()
	if err != nil {
		return glovebox.Internal("start the broker", err)
	}
	_, err = stream.Write(b)
	clear(b)
	if err = errors.Join(err, stream.CloseWrite()); err != nil {
		return p.gone(ctx, err)
	}
	var s Started
	if err := json.NewDecoder(io.LimitReader(stream, MaxAnswer)).Decode(&s); err != nil {
		return p.gone(ctx, errors.Join(err, context.Cause(ctx)))
	}
	return s.Error.Err()
}

// transport is HTTP/2 in clear over streams of one kind.
func (p *process) transport(o Opening) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return p.open(o) },
		Protocols:              protocols,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 256 << 10,
		IdleConnTimeout:        time.Minute,
		ExpectContinueTimeout:  time.Second,
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerConnection: 4 << 20, MaxReceiveBufferPerStream: 1 << 20},
	}
}

// over tells whether the broker has ended, or is as good as that.
func (p *process) over() bool {
	if p.lost.Load() {
		return true
	}
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// close ends the broker and returns when it is gone.
func (p *process) close() {
	p.closing.Do(func() {
		p.admin.CloseIdleConnections()
		p.control.Close()
		select {
		case <-p.ended:
		case <-time.After(endTime):
			_ = p.cmd.Process.Kill() // it ended just now, or it does
		}
	})
	<-p.ended
}

// lines gives what a broker logs to another log, in bounded lines. It never logs a value.
type lines struct {
	log  *slog.Logger
	rest []byte
}

const maxLine = 4 << 10

func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok && len(l.rest) < maxLine {
			return len(b), nil
		}
		l.tell(line[:min(len(line), maxLine)])
		l.rest = append(l.rest[:0], rest...)
	}
}

// tell logs a line: its words as they are, where it is one of a log.
func (l *lines) tell(line []byte) {
	var said map[string]any
	if json.Unmarshal(line, &said) != nil {
		l.log.Error("the broker says", "line", string(line))
		return
	}
	level, message := slog.LevelWarn, "the broker says"
	var args []any
	for _, name := range slices.Sorted(maps.Keys(said)) {
		switch name {
		case slog.TimeKey:
		case slog.LevelKey:
			if said[name] == slog.LevelInfo.String() {
				level = slog.LevelInfo
			}
		case slog.MessageKey:
			message = fmt.Sprint("broker: ", said[name])
		default:
			args = append(args, name, said[name])
		}
	}
	l.log.Log(context.Background(), level, message, args...)
}
