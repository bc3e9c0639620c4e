package admission

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"glovebox"
)

// TestWoken: what a run of this process gives back is another's at once, without a look at a clock.
func TestWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(t, t.TempDir(), 100*mib)
		holder := acquire(t, a, 100*mib)
		got := make(chan time.Time, 3)
		for range 3 { // all but the first are woken by the one before
			go func() {
				acquire(t, a, 30*mib)
				got <- time.Now()
			}()
		}
		time.Sleep(time.Minute + 3*time.Millisecond) // between two looks
		begun := time.Now()
		if err := holder.Release(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if took := (<-got).Sub(begun); took != 0 {
				t.Errorf("it took %v", took)
			}
		}
		taken(t, a, 90*mib)
	})
}

// TestReplacedFile: somebody tidied up. What is held stays counted by whoever holds it, and whoever comes next shares the new
// file with all others; so does whoever waits.
func TestReplacedFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		a, b := newAdmission(t, dir, 100*mib), newAdmission(t, dir, 100*mib)
		old := acquire(t, a, 60*mib)
		waited := make(chan *Share)
		go func() { waited <- acquire(t, a, 70*mib) }()
		time.Sleep(time.Second)
		if err := os.Remove(filepath.Join(dir, lockName)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if s, err := b.Try(20*mib, false); s != nil || err != nil {
			t.Errorf("it passed one that waits: %v, %v", s, err)
		}
		taken(t, a, 60*mib)
		if err := old.Release(); err != nil {
			t.Error(err)
		}
		s := <-waited
		taken(t, b, 70*mib)
		if s, err := b.Try(31*mib, false); s != nil || err != nil {
			t.Errorf("70 and 31 MiB fitted in 100: %v, %v", s, err)
		}
		if err := s.Release(); err != nil {
			t.Error(err)
		}
		taken(t, b, 0)
		nobodyWaits(t, dir)
	})
}

// TestManyOfOneProcess: the locks of a process lie beside each other and go one by one, in any order.
func TestManyOfOneProcess(t *testing.T) {
	dir := t.TempDir()
	a, b := newAdmission(t, dir, 100*mib), newAdmission(t, dir, 100*mib)
	var all []*Share
	for range 10 {
		all = append(all, acquire(t, a, 5*mib), acquire(t, b, 5*mib))
	}
	for i, want := range []int{3, 0, 19, 10, 11, 5, 1, 2, 4, 6} {
		if err := all[want].Release(); err != nil {
			t.Fatal(err)
		}
		taken(t, a, 100*mib-mib*5*(1+glovebox.Size(i)))
		taken(t, b, 100*mib-mib*5*(1+glovebox.Size(i)))
	}
	if s, err := a.Try(50*mib+1, false); s != nil || err != nil {
		t.Errorf("more than there is: %v, %v", s, err)
	}
	if s, err := a.Try(50*mib, false); s == nil || err != nil {
		t.Errorf("as much as there is: %v, %v", s, err)
	}
	taken(t, b, 100*mib)
}
