package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestUpdatesTogether(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	boom := errors.New("boom")
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			run := fmt.Sprint("r", i)
			err := s.Update(t.Context(), func(ctx context.Context, tx *Tx) error {
				if err := addRecord(run, "note")(ctx, tx); err != nil {
					return err
				}
				switch i % 4 {
				case 1:
					return boom
				case 2:
					panic("slipped")
				}
				return nil
			})
			switch {
			case i%4 == 1 && !errors.Is(err, boom), i%4 == 2 && (err == nil || !strings.Contains(err.Error(), "slipped")),
				i%2 == 0 && i%4 == 0 && err != nil:
				t.Errorf("update %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	for i := range 200 {
		want := 0
		if i%4 == 0 || i%4 == 3 {
			want = 1
		}
		if got := len(kinds(t, s, fmt.Sprint("r", i))); got != want {
			t.Errorf("update %d left %d records, want %d", i, got, want)
		}
	}
}

func TestUpdateEndsItsWait(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	holding, release := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Update(t.Context(), func(context.Context, *Tx) error { close(holding); <-release; return nil }); err != nil {
			t.Error(err)
		}
	})
	<-holding
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
	err := s.Update(ctx, func(context.Context, *Tx) error { t.Error("it ran although nobody waits"); return nil })
	if !errors.Is(err, why) {
		t.Errorf("update: %v, want the cause", err)
	}
	close(release)
	wg.Wait()
	if err := s.Update(t.Context(), addRecord("r", "after")); err != nil {
		t.Error(err)
	}
}

func TestALostTransactionFailsAllOfIt(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	jobs := []*job{
		{fn: addRecord("first", "note")},
		{fn: func(ctx context.Context, tx *Tx) error { // as SQLite does by itself when the disk is full
			_, err := tx.Exec(ctx, "ROLLBACK")
			return errors.Join(errors.New("no room"), err)
		}},
		{fn: addRecord("third", "note")},
	}
	s.commit(t.Context(), jobs)
	for i, j := range jobs {
		if j.err == nil {
			t.Errorf("job %d of a lost transaction has no error", i)
		}
	}
	for _, run := range []string{"first", "third"} {
		if got := kinds(t, s, run); got != nil {
			t.Errorf("%s is kept: %v", run, got)
		}
	}
	if err := s.Update(t.Context(), addRecord("next", "note")); err != nil {
		t.Errorf("the next update: %v", err)
	}
}

// TestVersion: it stays while this store alone writes, and changes with what another one wrote.
func TestVersion(t *testing.T) {
	dir := t.TempDir()
	s, other := mustOpen(t, dir), mustOpen(t, dir)
	version := func() (v int64) {
		t.Helper()
		err := s.Update(t.Context(), func(ctx context.Context, tx *Tx) (err error) {
			v, err = tx.Version(ctx)
			return errors.Join(err, addRecord(fmt.Sprint("r", time.Now().UnixNano()), "note")(ctx, tx))
		})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	first := version()
	if again := version(); again != first || first == 0 {
		t.Errorf("it was %d and is %d although nobody else wrote", first, again)
	}
	if err := other.Update(t.Context(), addRecord("other", "note")); err != nil {
		t.Fatal(err)
	}
	second := version()
	if second == first {
		t.Errorf("it is %d as before another store wrote", second)
	}
	if again := version(); again != second {
		t.Errorf("it was %d and is %d although nobody else wrote", second, again)
	}
}

func TestLocksOutliveASecondStore(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	if err := s.Update(t.Context(), addRecord("r", "note")); err != nil {
		t.Fatal(err)
	}
	other, err := Open(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, databaseName), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// The bytes that SQLite's file format sets aside for the lock of whoever has the database open.
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 1<<30 + 2, Len: 510}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		t.Fatal(err)
	}
	if lock.Type == unix.F_UNLCK {
		t.Error("another process would take an open database for one that nobody has open")
	}
}

func TestTurnIsNotWaitedForEndlessly(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	stopped, err := openTurn(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.close()
	stopped.take()
	s.turn.most = 100 * time.Millisecond
	start := time.Now()
	if err := s.Update(t.Context(), addRecord("r", "note")); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took < s.turn.most || took > turnWait {
		t.Errorf("it waited %v", took)
	}
}
