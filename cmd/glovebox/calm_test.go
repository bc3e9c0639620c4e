package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestSleepLonger: where it may be set, each thread has the slack afterwards, those of the runtime too; elsewhere that is no
// error.
func TestSleepLonger(t *testing.T) {
	if err := sleepLonger(); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		return
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, thread := range threads {
		text, err := os.ReadFile(filepath.Join("/proc", thread.Name(), "timerslack_ns"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		seen++
		if got := strings.TrimSpace(string(text)); err != nil || got != strconv.Itoa(serverSlack) {
			t.Errorf("thread %s: %q, %v", thread.Name(), got, err)
		}
	}
	if seen < 2 {
		t.Errorf("%d threads were seen", seen)
	}
}
