package store

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// turn puts the writers of different processes in a queue. SQLite alone lets them guess: who waits looks ever more seldom,
// while who has just written comes again at once, so that under load some never get through. It is for fairness only; what
// keeps the database whole is SQLite's own lock. Whoever has waited turnWait goes without, since a process that is stopped
// while it waits must not stop all the others.
type turn struct {
	file *os.File
	most time.Duration // to wait
}

const (
	turnName  = "glovebox.turn"
	turnWait  = 5 * time.Second
	turnPause = 300 * time.Microsecond

	queueByte = 0 // held by the one that is next
	writeByte = 1 // held by the one that writes
)

func openTurn(dir string) (turn, error) {
	f, err := os.OpenFile(filepath.Join(dir, turnName), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0o600)
	return turn{f, turnWait}, err
}

// take waits for the turn, for a while at most; leave ends it.
func (t turn) take() (leave func()) {
	deadline := time.Now().Add(t.most)
	if !t.wait(queueByte, deadline) {
		return func() {}
	}
	defer t.set(unix.F_UNLCK, queueByte)
	if !t.wait(writeByte, deadline) {
		return func() {}
	}
	return func() { t.set(unix.F_UNLCK, writeByte) }
}

func (t turn) wait(b int64, deadline time.Time) bool {
	for {
		err := t.set(unix.F_WRLCK, b)
		if err == nil {
			return true
		}
		taken := errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINTR)
		if !taken || time.Now().After(deadline) {
			return false
		}
		time.Sleep(turnPause)
	}
}

// set is by open file, so that two stores of one process are in the queue like any others.
func (t turn) set(kind int16, b int64) error {
	lock := unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: b, Len: 1}
	return unix.FcntlFlock(t.file.Fd(), unix.F_OFD_SETLK, &lock)
}

func (t turn) close() error {
	if t.file == nil {
		return nil
	}
	return t.file.Close()
}
