package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/drivertest"
)

// TestEndWithoutRoom: a run whose output cannot be kept has its end recorded all the same, and says what is missing.
func TestEndWithoutRoom(t *testing.T) {
	dir := t.TempDir()
	blobs := filepath.Join(dir, "blobs")
	fake := &drivertest.Fake{Program: func(_ context.Context, p *drivertest.Proc) driver.Exit {
		fmt.Fprint(p.Stdout, strings.Repeat("x", 1<<20))
		if err := errors.Join(os.Rename(blobs, blobs+".gone"), os.WriteFile(blobs, nil, 0o600)); err != nil {
			t.Error(err)
		}
		return driver.Exit{Code: 3}
	}}
	e := newEngine(t, fake, dir)
	res, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if *res.ExitCode != 3 || res.Trace.Seq == 0 || !strings.Contains(res.Reason, "could not be kept") {
		t.Errorf("result = %+v", res)
	}
	rec, err := e.Trace(t.Context(), owner, res.ID)
	if err != nil || rec.State != "ended" || rec.Result == nil || rec.Result.Reason != res.Reason {
		t.Errorf("record = %+v (%v)", rec, err)
	}
	if piece, err := e.Output(t.Context(), owner, res.ID, "stdout", 0, 10); codeOf(err) != glovebox.CodeNotFound {
		t.Errorf("output = %q (%v), want that it was not kept", piece, err)
	}
	if piece, err := e.Output(t.Context(), owner, res.ID, "stderr", 0, 10); err != nil || len(piece) != 0 {
		t.Errorf("stderr = %q (%v), want nothing", piece, err)
	}
}

// TestOutputsWithoutRoom: outputs that cannot be kept are not the program's fault, and are said so.
func TestOutputsWithoutRoom(t *testing.T) {
	dir := t.TempDir()
	fake := &drivertest.Fake{Program: func(_ context.Context, p *drivertest.Proc) driver.Exit {
		if err := p.Leave("a", []byte("a")); err != nil {
			t.Error(err)
		}
		blobs := filepath.Join(dir, "blobs")
		if err := errors.Join(os.Rename(blobs, blobs+".gone"), os.WriteFile(blobs, nil, 0o600)); err != nil {
			t.Error(err)
		}
		return driver.Exit{}
	}}
	e := newEngine(t, fake, dir)
	res, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x", Collect: true}, nil)
	if err != nil || !res.OK {
		t.Fatalf("result %+v, error %v", res, err)
	}
	want := []glovebox.Skipped{{Path: "a", Reason: "it could not be stored", Fault: glovebox.FaultGlovebox}}
	if d := cmp.Diff(want, res.Skipped); d != "" || len(res.Artifacts) != 0 {
		t.Errorf("artifacts %v, skipped (-want +got):\n%s", res.Artifacts, d)
	}
}

// TestCancelledWhileCollecting: what is left then is said to be left, and the end is recorded once as what it was.
func TestCancelledWhileCollecting(t *testing.T) {
	const files = 500
	ctx, cancel := context.WithCancel(t.Context())
	opened := 0
	fake := &drivertest.Fake{Program: func(_ context.Context, p *drivertest.Proc) driver.Exit {
		for i := range files {
			p.Leave(fmt.Sprintf("f%03d", i), []byte(fmt.Sprint(i)))
		}
		return driver.Exit{}
	}, Fail: func(step string) error {
		if step == "open" {
			if opened++; opened == 100 {
				cancel()
			}
		}
		return nil
	}}
	e := newEngine(t, fake, t.TempDir())
	res, err := e.Run(ctx, owner, glovebox.Request{Code: "x", Collect: true}, nil)
	if err != nil || res.Status != glovebox.StatusExited || !strings.Contains(res.Reason, "cancelled while its outputs") {
		t.Fatalf("error %v, want that the run exited and its collection was cancelled", err)
	}
	if n := len(res.Artifacts); n < 50 || n > 100 || len(res.Skipped) == 0 || opened > 101 {
		t.Errorf("%d artifacts, %d skipped, %d opened", n, len(res.Skipped), opened)
	}
	for _, s := range res.Skipped {
		if s.Fault != glovebox.FaultCaller {
			t.Errorf("skipped %+v", s)
		}
	}
	rec, err := e.Trace(t.Context(), owner, res.ID)
	if err != nil || rec.State != "ended" || rec.Result.Status != res.Status || len(rec.Result.Artifacts) != len(res.Artifacts) {
		t.Errorf("record = %+v (%v)", rec, err)
	}
	for _, a := range res.Artifacts {
		f, err := e.Artifact(t.Context(), owner, res.ID, a.Path)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
}

// TestEndWithoutAnyRoom: what has run is not said to have been refused.
func TestEndWithoutAnyRoom(t *testing.T) {
	var e *Engine
	fake := &drivertest.Fake{Program: func(_ context.Context, p *drivertest.Proc) driver.Exit {
		if err := e.store.Close(); err != nil {
			t.Error(err)
		}
		return driver.Exit{}
	}}
	e = newEngine(t, fake, t.TempDir())
	res, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x"}, nil)
	var known *glovebox.Error
	if res != nil || !errors.As(err, &known) || known.Code != glovebox.CodeInternal ||
		!strings.HasPrefix(known.Public, "the program ran, but the run's end could not be recorded") {
		t.Errorf("result %v, error %#v", res, err)
	}
}

// TestEndOnAFullDisk: the same on a disk that is really full.
func TestEndOnAFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		if os.Getenv("GLOVEBOX_TEST_ROOT") == "1" {
			t.Fatal("root was promised")
		}
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m,mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	fake := &drivertest.Fake{Program: func(_ context.Context, p *drivertest.Proc) driver.Exit {
		fill, err := os.Create(filepath.Join(dir, "fill"))
		if err != nil {
			t.Error(err)
			return driver.Exit{}
		}
		defer fill.Close()
		for _, size := range []int{1 << 20, 4096, 1} {
			for piece := make([]byte, size); err == nil; _, err = fill.Write(piece) {
			}
			err = nil
		}
		fmt.Fprint(p.Stdout, strings.Repeat("x", 100<<10))
		return driver.Exit{}
	}}
	e := newEngine(t, fake, dir)
	res, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x"}, nil)
	var known *glovebox.Error
	switch {
	case err == nil && strings.Contains(res.Reason, "could not be kept"):
	case errors.As(err, &known) && known.Code == glovebox.CodeInternal &&
		strings.Contains(known.Public, "disk of the data_dir is full") && strings.Contains(known.Fix, "df -h"):
	default:
		t.Errorf("result %+v, error %v", res, err)
	}
	if err := os.Remove(filepath.Join(dir, "fill")); err != nil {
		t.Fatal(err)
	}
	if recs, err := e.Traces(t.Context(), owner, glovebox.TraceQuery{}); err != nil || len(recs) != 1 {
		t.Errorf("records = %+v (%v)", recs, err)
	}
}

// TestLeftoversGo: what an engine that died left behind goes with the first run of the next, however young it is.
func TestLeftoversGo(t *testing.T) {
	dir := t.TempDir()
	e := newEngine(t, &drivertest.Fake{}, dir)
	if _, err := e.record(); err != nil {
		t.Fatal(err)
	}
	blob, folder := filepath.Join(dir, "blobs/new/blob-1"), filepath.Join(dir, "runs/run_dead")
	if err := errors.Join(os.WriteFile(blob, []byte("half"), 0o600),
		os.MkdirAll(filepath.Join(folder, "inputs"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Run(t.Context(), owner, glovebox.Request{Code: "x"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for _, left := range []string{blob, folder} {
		if _, err := os.Lstat(left); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", left, err)
		}
	}
}
