package microvm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"glovebox/driver"
)

// fakeQEMU answers each line by what script says of it; a nil script says nothing.
func fakeQEMU(t testing.TB, greeting string, script func(line string) string) *qmp {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	near, far := os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
	q := newQMP(near)
	var running sync.WaitGroup
	running.Go(q.run)
	running.Go(func() {
		defer far.Close()
		fmt.Fprint(far, greeting)
		for lines := bufio.NewScanner(far); lines.Scan(); {
			if script == nil {
				return
			}
			fmt.Fprint(far, script(lines.Text()))
		}
	})
	t.Cleanup(func() {
		_ = near.Close()
		running.Wait()
	})
	return q
}

const greeting = `{"QMP": {"version": {}, "capabilities": []}}` + "\n"

func TestQMP(t *testing.T) {
	n := 0
	q := fakeQEMU(t, greeting, func(line string) string {
		n++
		event := `{"event": "STOP", "timestamp": {}}` + "\n"
		switch {
		case strings.Contains(line, "qmp_capabilities"):
			return event + fmt.Sprintf(`{"return": {}, "id": %d}`, n) + "\n"
		case strings.Contains(line, "query-status"):
			return event + fmt.Sprintf(`{"return": {"status": "paused", "more": 1}, "id": %d}`, n) + "\n" + event
		}
		return fmt.Sprintf(`{"error": {"class": "GenericError", "desc": "no"}, "id": %d}`, n) + "\n"
	})
	ctx := context.Background()
	if err := q.greet(ctx); err != nil {
		t.Fatal(err)
	}
	m := &machine{qmp: q}
	if err := m.poll(ctx, "query-status", func(s string) (bool, error) { return s == "paused", nil }); err != nil {
		t.Error(err)
	}
	if err := q.do(ctx, "quit", nil, nil); err == nil || !strings.Contains(err.Error(), "GenericError") {
		t.Errorf("a refusal came as %v", err)
	}
}

func TestQMPRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		greeting string
		answer   string
	}{
		"no greeting":      {`{"return": {}}` + "\n", ""},
		"no JSON":          {"hello\n", ""},
		"hung up":          {"", ""},
		"another's answer": {greeting, `{"return": {}, "id": 7}` + "\n"},
		"neither":          {greeting, `{"id": 1}` + "\n"},
		"one too many":     {greeting, `{"return": {}, "id": 7}` + "\n" + `{"return": {}, "id": 8}` + "\n" + `{"return": {}, "id": 9}` + "\n"},
		"an endless line":  {strings.Repeat(" ", maxLine+1), ""},
	} {
		q := fakeQEMU(t, c.greeting, func(string) string { return c.answer })
		if c.greeting == "" {
			q = fakeQEMU(t, "", nil)
			_, _ = q.conn.Write([]byte("\n"))
		}
		if err := q.greet(context.Background()); err == nil {
			t.Errorf("%s: was taken", name)
		}
	}
}

// TestQMPGivenUp: a command that is given up ends the connection, for its answer could be taken for another's.
func TestQMPGivenUp(t *testing.T) {
	q := fakeQEMU(t, greeting, func(line string) string {
		if strings.Contains(line, "qmp_capabilities") {
			return `{"return": {}, "id": 1}` + "\n"
		}
		return ""
	})
	if err := q.greet(context.Background()); err != nil {
		t.Fatal(err)
	}
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(gone)
	if err := q.do(ctx, "cont", nil, nil); !errors.Is(err, gone) {
		t.Errorf("given up: %v", err)
	}
	if err := q.do(context.Background(), "cont", nil, nil); err == nil {
		t.Error("the connection was used on")
	}
}

func FuzzQMP(f *testing.F) {
	f.Add(greeting + `{"return": {}, "id": 1}` + "\n")
	f.Add(greeting + `{"event": "STOP"}` + "\n" + `{"error": {"class": "A", "desc": "b"}, "id": 1}` + "\n")
	f.Fuzz(func(t *testing.T, said string) {
		q := fakeQEMU(t, said, nil)
		// Whatever it says, each call ends.
		_ = q.greet(context.Background())
		_ = q.do(context.Background(), "query-status", nil, new(struct{ Status string }))
	})
}

// TestAbandonUnmade: a machine of which nothing could be made, for want of descriptors say, is closed like any other.
func TestAbandonUnmade(t *testing.T) {
	why := errors.New("too many open files")
	if err := new(machine).abandon(t.Context(), why); !errors.Is(err, why) || errors.Is(err, driver.ErrLeftBehind) {
		t.Errorf("%v", err)
	}
}
