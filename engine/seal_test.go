package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/drivertest"
)

// TestResultsProveTheTrace: the head in a result is what verification takes.
func TestResultsProveTheTrace(t *testing.T) {
	e := newEngine(t, &drivertest.Fake{Program: func(_ context.Context, p *drivertest.Proc) driver.Exit {
		fmt.Fprint(p.Stdout, "hi")
		p.Leave("x", []byte("kept"))
		return driver.Exit{}
	}}, t.TempDir())
	var heads []glovebox.TraceRef
	for range 3 {
		res, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x", Collect: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		rec, err := e.Trace(t.Context(), owner, res.ID)
		if err != nil || rec.Result.Trace != res.Trace {
			t.Errorf("the record's head is %v, the result's %v; %v", rec.Result.Trace, res.Trace, err)
		}
		heads = append(heads, res.Trace)
	}
	v, err := e.Verify(t.Context(), owner, heads)
	if err != nil || !v.OK || v.Records != 6 || v.Heads != 3 || v.Blobs != 4 {
		t.Errorf("%+v, %v", v, err)
	}
	for _, who := range []glovebox.Principal{{}, {Tenant: "local", Name: "guest"}} {
		if _, err := e.Verify(t.Context(), who, nil); codeOf(err) != glovebox.CodeDenied {
			t.Errorf("%+v may verify: %v", who, err)
		}
	}
}

// TestNothingRunsUnsealed: without the key, or where heads do not arrive, no code is released, and doctor says why.
func TestNothingRunsUnsealed(t *testing.T) {
	for name, spoil := range map[string]func(dir string, c *Config) error{
		"the key is open to others": func(dir string, _ *Config) error { return os.Chmod(filepath.Join(dir, "trace.key"), 0o644) },
		"the key is missing":        func(dir string, _ *Config) error { return os.Remove(filepath.Join(dir, "trace.key")) },
		"heads do not arrive":       func(dir string, c *Config) error { c.Trace.HeadsFile = dir; return nil },
	} {
		dir := t.TempDir()
		e := newEngine(t, &drivertest.Fake{}, dir)
		if _, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x"}, nil); err != nil {
			t.Fatal(err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		fake := &drivertest.Fake{Dir: t.TempDir(), Program: func(context.Context, *drivertest.Proc) driver.Exit {
			t.Errorf("%s: it ran", name)
			return driver.Exit{}
		}}
		c := Config{DataDir: dir, Drivers: []driver.Driver{fake}, Policy: lowRungs, Image: fakeImage{}}
		if err := spoil(dir, &c); err != nil {
			t.Fatal(err)
		}
		e, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		_, err = e.Run(t.Context(), owner, glovebox.Request{Code: "x"}, nil)
		var known *glovebox.Error
		if !errors.As(err, &known) || known.Code != glovebox.CodeUnavailable || !strings.Contains(known.Public, "nothing is run") {
			t.Errorf("%s: %v", name, err)
		}
		if recs, err := e.Traces(t.Context(), owner, glovebox.TraceQuery{}); err != nil || len(recs) != 1 {
			t.Errorf("%s: records cannot be read: %v", name, err)
		}
		report, err := e.Doctor(t.Context())
		if err != nil || report.Ready {
			t.Errorf("%s: doctor is ready: %v", name, err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRetentionBesideRuns: a run makes the engine erase what is due, never of a run that goes on, and only now and then.
func TestRetentionBesideRuns(t *testing.T) {
	var now atomic.Int64 // hours
	var log bytes.Buffer
	handler := slog.NewTextHandler(&log, nil) // one, which locks
	live, finish := make(chan struct{}), make(chan struct{})
	fake := &drivertest.Fake{Dir: t.TempDir(), Program: func(ctx context.Context, p *drivertest.Proc) driver.Exit {
		fmt.Fprint(p.Stdout, strings.Repeat("x", 1000))
		select {
		case live <- struct{}{}:
			<-finish
		default:
		}
		return driver.Exit{}
	}}
	dir := t.TempDir()
	open := func() *Engine {
		e, err := New(Config{DataDir: dir, Drivers: []driver.Driver{fake}, Policy: lowRungs, Image: fakeImage{}, Now: func() time.Time { return time.Unix(now.Load()*3600, 0) },
			Trace: Trace{Retention: time.Hour}, Log: slog.New(handler)})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	now.Store(1e6 / 2)
	e := open()
	old, err := e.Run(t.Context(), owner, glovebox.Request{Code: "old"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	running := make(chan error)
	go func() {
		_, err := e.Run(context.Background(), owner, glovebox.Request{Code: "live"}, nil)
		running <- err
	}()
	<-live
	now.Add(2)
	other := open() // another process
	if _, err := other.Run(t.Context(), owner, glovebox.Request{Code: "new"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil { // waits for what goes on beside runs
		t.Fatal(err)
	}
	recs, err := e.Traces(t.Context(), owner, glovebox.TraceQuery{})
	if err != nil || len(recs) != 3 {
		t.Fatalf("%d records, %v", len(recs), err)
	}
	for _, r := range recs {
		if erased := !r.Erased.IsZero(); erased != (r.ID == old.ID) || erased != (r.Code == "") {
			t.Errorf("%s is %s, erased %v", r.ID, r.State, r.Erased)
		}
	}
	close(finish)
	if err := <-running; err != nil {
		t.Error(err)
	}
	if v, err := e.Verify(t.Context(), owner, []glovebox.TraceRef{old.Trace}); err != nil || !v.OK || len(v.Erased) != 1 {
		t.Errorf("%+v, %v", v, err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if strings.Count(log.String(), "erased by retention") != 1 {
		t.Errorf("log:\n%s", log.String())
	}
}
