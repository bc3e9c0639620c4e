package trace

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"glovebox"
)

// Heads are the places, outside the store, to which signed tree heads go: whoever rewrites the store cannot reach them
// there. Empty fields are no place.
type Heads struct {
	// File is the path of a file that gets a line SEQ:HASH for each head. It is appended to and synced. It is made, mode
	// 0600, when it is missing.
	File string
	// Syslog is the path of the system logger's socket, such as /dev/log.
	Syslog string
	// Webhook is an address that heads are posted to (see ParseWebhook). Each run waits for it at its start and at its end,
	// ten seconds at most.
	Webhook string
}

// syslogWait bounds a write to a logger that does not read.
const syslogWait = time.Second

// publisher brings heads to their places. While one waits for a disk the others gather, and the newest goes for all of them:
// it covers every record before it. It is safe for concurrent use.
type publisher struct {
	to  Heads
	now func() time.Time
	log *slog.Logger

	newest struct {
		sync.Mutex
		head head
	}
	mu     sync.Mutex
	sent   int64 // the size of the last head that arrived
	file   *os.File
	syslog *net.UnixConn
	hook   *webhook
}

// ready says why heads cannot arrive, as far as can be told without one: nothing is run before they can.
func (p *publisher) ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failure(errors.Join(p.openFile(), p.openSyslog(), p.openWebhook()))
}

// publish returns when h or a newer head is at every place.
func (p *publisher) publish(h head) *glovebox.Error {
	if p.to == (Heads{}) {
		return nil
	}
	p.newest.Lock()
	if p.newest.head.size < h.size {
		p.newest.head = h
	}
	p.newest.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sent >= h.size {
		return nil
	}
	p.newest.Lock()
	h = p.newest.head
	p.newest.Unlock()
	err := p.failure(errors.Join(p.toFile(h), p.toSyslog(h), p.toWebhook(h)))
	if err == nil {
		p.sent = h.size
		return nil
	}
	return err.(*glovebox.Error)
}

// late publishes the head of something that is over already, which cannot be refused any more. The next that begins is.
func (p *publisher) late(h head) {
	if err := p.publish(h); err != nil {
		p.log.Error("publish the tree head", "seq", h.size, "err", err)
	}
}

func (p *publisher) failure(err error) error {
	if err == nil {
		return nil
	}
	return &glovebox.Error{Code: glovebox.CodeUnavailable, Op: "publish the tree head", Err: err,
		Public: "the trace is not available, so nothing is run: its tree heads do not get to where trace.heads says",
		Fix:    "mend it or take it out of trace.heads: " + err.Error()}
}

var errHeadsFile = errors.New("trace.heads.file is no file that this user alone may write")

func (p *publisher) openFile() error {
	if p.to.File == "" {
		return nil
	}
	if p.file != nil {
		mine, err := p.file.Stat()
		there, gone := os.Lstat(p.to.File)
		if err == nil && gone == nil && os.SameFile(mine, there) {
			return nil
		}
		// It was moved or removed, as rotation of logs does: what is written to it would be where nobody looks.
		_ = p.file.Close()
		p.file = nil
	}
	const how = os.O_WRONLY | os.O_APPEND | os.O_CREATE | syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_CLOEXEC
	f, err := os.OpenFile(p.to.File, how, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || !info.Mode().IsRegular() || info.Mode().Perm()&0o022 != 0 || stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
			err = errHeadsFile
		}
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	p.file = f
	return nil
}

func (p *publisher) toFile(h head) error {
	if p.to.File == "" {
		return nil
	}
	if err := p.openFile(); err != nil {
		return err
	}
	ref := h.ref()
	// One write, so that lines of several processes do not mix.
	if _, err := fmt.Fprintf(p.file, "%d:%s\n", ref.Seq, ref.Hash); err != nil {
		return err
	}
	return p.file.Sync()
}

func (p *publisher) openSyslog() error {
	if p.to.Syslog == "" || p.syslog != nil {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: p.to.Syslog, Net: "unixgram"})
	if err == nil {
		p.syslog = c
	}
	return err
}

// toSyslog sends one message. A logger that was started again has a new socket, so that a second try is made.
func (p *publisher) toSyslog(h head) error {
	if p.to.Syslog == "" {
		return nil
	}
	const authInfo = 10<<3 | 6 // the facility for what concerns security, informational
	ref := h.ref()
	line := fmt.Sprintf("<%d>%s glovebox[%d]: trace head %d:%s", authInfo, p.now().Format(time.Stamp), os.Getpid(),
		ref.Seq, ref.Hash)
	var errs error
	for range 2 {
		err := p.openSyslog()
		if err == nil {
			if err = p.syslog.SetWriteDeadline(time.Now().Add(syslogWait)); err == nil {
				if _, err = p.syslog.Write([]byte(line)); err == nil {
					return nil
				}
			}
			p.syslog.Close()
			p.syslog = nil
		}
		errs = errors.Join(errs, err)
	}
	return errs
}

func (p *publisher) openWebhook() (err error) {
	if p.hook == nil {
		p.hook, err = newWebhook(p.to.Webhook)
	}
	return err
}

func (p *publisher) toWebhook(h head) error {
	if p.to.Webhook == "" {
		return nil
	}
	if err := p.openWebhook(); err != nil {
		return err
	}
	return p.hook.post(h)
}

func (p *publisher) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs error
	if p.file != nil {
		errs = p.file.Close()
	}
	if p.syslog != nil {
		errs = errors.Join(errs, p.syslog.Close())
	}
	if p.hook != nil {
		p.hook.close()
	}
	p.file, p.syslog, p.hook = nil, nil, nil
	return errs
}
