package httpapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
)

// These tests hold the door and the client against each other: what goes in on one side comes out on the other.

var number1 int64 = 1000

// wholeBytes compares bytes at once, for cmp looks at each.
var wholeBytes = cmp.Comparer(bytes.Equal)

// fill sets every field of v, which is a pointer, to something that is not its zero value.
func fill(v reflect.Value) {
	number1++
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		fill(v.Elem())
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(number1, number1).UTC()))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0))
		fill(v.Index(1))
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("\x1b \"\\\u202e é\n" + itoa(int(number1)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		n := number1
		if v.Type() == reflect.TypeFor[time.Duration]() {
			n *= int64(time.Millisecond)
		}
		v.SetInt(n)
	case reflect.Float64:
		v.SetFloat(float64(number1) + 0.1)
	case reflect.Interface: // StdinFrom, which a test of its own looks at
	default:
		panic(v.Kind())
	}
}

func filled[T any]() T {
	var v T
	fill(reflect.ValueOf(&v).Elem())
	return v
}

// TestRequestSurvives: every field of a request arrives, each by itself and all together.
func TestRequestSurvives(t *testing.T) {
	w := newWorld(t)
	var got glovebox.Request
	w.run = func(_ context.Context, _ glovebox.Principal, req glovebox.Request, _ glovebox.Sink) (*glovebox.Result, error) {
		got = req
		return &glovebox.Result{}, nil
	}
	whole := filled[glovebox.Request]()
	for i := range whole.Inputs {
		whole.Inputs[i].Path = "/" + itoa(i) + "/x"
	}
	requests := []glovebox.Request{whole, {}, {Stdin: "a\xff\x00b"}, {Collect: true}}
	for i := range reflect.TypeFor[glovebox.Request]().NumField() {
		var one glovebox.Request
		reflect.ValueOf(&one).Elem().Field(i).Set(reflect.ValueOf(whole).Field(i))
		requests = append(requests, one)
	}
	for _, sink := range []glovebox.Sink{nil, sinkFunc(func(glovebox.Event) {})} {
		for _, want := range requests {
			if _, err := w.client.Run(t.Context(), owner, want, sink); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("a request was changed: %s", diff)
			}
		}
	}
}

// TestResultSurvives: a result is the same on the other side, lists that are empty and none included.
func TestResultSurvives(t *testing.T) {
	w := newWorld(t)
	for _, want := range []glovebox.Result{
		filled[glovebox.Result](), {}, {Flags: []string{}, Artifacts: []glovebox.Artifact{}, Posture: glovebox.Posture{}},
	} {
		w.run = func(context.Context, glovebox.Principal, glovebox.Request, glovebox.Sink) (*glovebox.Result, error) {
			return &want, nil
		}
		for _, sink := range []glovebox.Sink{nil, sinkFunc(func(glovebox.Event) {})} {
			got, err := w.client.Run(t.Context(), owner, glovebox.Request{Code: "1"}, sink)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&want, got); diff != "" {
				t.Errorf("a result was changed: %s", diff)
			}
		}
	}
}

// TestEventsSurvive: every kind of event arrives in order, with the exact bytes, before the result.
func TestEventsSurvive(t *testing.T) {
	w := newWorld(t)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	var want []glovebox.Event
	add := func(e glovebox.Event) {
		e.Run, e.Time = "run_1", time.Unix(int64(len(want)), 5).UTC()
		want = append(want, e)
	}
	add(glovebox.Event{Kind: "start", Limits: filled[glovebox.Limits]()})
	for _, data := range [][]byte{[]byte("text\n"), all, []byte("\r\n\r\ndata: x\n\n"), []byte("é"[:1]), []byte("é"[1:]),
		[]byte("\u2028\u202e\U000e0041\x00"), bytes.Repeat([]byte("long \xff"), 1<<17), bytes.Repeat([]byte("é"), 1<<19), []byte("\x7f")} {
		add(glovebox.Event{Kind: "stdout", Data: data})
		add(glovebox.Event{Kind: "stderr", Data: data})
	}
	add(glovebox.Event{Kind: "usage", Usage: filled[glovebox.Usage]()})
	add(glovebox.Event{Kind: "egress", Egress: filled[glovebox.EgressFlow]()})
	w.run = func(_ context.Context, _ glovebox.Principal, _ glovebox.Request, sink glovebox.Sink) (*glovebox.Result, error) {
		for _, e := range want {
			sink.Event(e)
		}
		return &glovebox.Result{ID: "run_1"}, nil
	}
	var got []glovebox.Event
	if _, err := w.client.Run(t.Context(), owner, glovebox.Request{Code: "1"}, sinkFunc(func(e glovebox.Event) {
		e.Data = bytes.Clone(e.Data)
		got = append(got, e)
	})); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, wholeBytes); diff != "" {
		t.Errorf("events were changed: %.2000s", diff)
	}
}

// TestErrorsSurvive: an error is the same for the caller, before and after the first event, whatever was asked.
func TestErrorsSurvive(t *testing.T) {
	w := newWorld(t)
	for _, code := range []glovebox.Code{"invalid", "denied", "unavailable", "exhausted", "not_found", "conflict", "internal"} {
		want := &glovebox.Error{Code: code, Public: "why \u202e\x1b", Fix: "mend"}
		thrown := *want
		thrown.Op, thrown.Err = "op", errors.New("cause")
		early := true
		w.run = func(_ context.Context, _ glovebox.Principal, _ glovebox.Request, sink glovebox.Sink) (*glovebox.Result, error) {
			if !early {
				sink.Event(glovebox.Event{Kind: "start", Run: "run_1"})
			}
			return nil, &thrown
		}
		w.output = func(string, string, int64, int64) ([]byte, error) { return nil, &thrown }
		w.artifact = func(string, string) (io.ReadCloser, error) { return nil, &thrown }
		w.trace = func(string) (*glovebox.Record, error) { return nil, &thrown }
		w.traces = func(glovebox.TraceQuery) ([]glovebox.Record, error) { return nil, &thrown }
		w.verify = func([]glovebox.TraceRef) (*glovebox.Verification, error) { return nil, &thrown }
		w.doctor = func() (*glovebox.Report, error) { return nil, &thrown }
		w.rungs = func() ([]glovebox.Rung, error) { return nil, &thrown }
		ctx, c, q := t.Context(), w.client, glovebox.Request{Code: "1"}
		for name, ask := range map[string]func() error{
			"run":    func() error { _, err := c.Run(ctx, owner, q, nil); return err },
			"stream": func() error { _, err := c.Run(ctx, owner, q, sinkFunc(func(glovebox.Event) {})); return err },
			"late": func() error {
				early = false
				_, err := c.Run(ctx, owner, q, sinkFunc(func(glovebox.Event) {}))
				return err
			},
			"output":   func() error { _, err := c.Output(ctx, owner, "r", "stdout", 0, 1); return err },
			"artifact": func() error { _, err := c.Artifact(ctx, owner, "r", "x"); return err },
			"trace":    func() error { _, err := c.Trace(ctx, owner, "r"); return err },
			"traces":   func() error { _, err := c.Traces(ctx, owner, glovebox.TraceQuery{}); return err },
			"verify":   func() error { _, err := c.Verify(ctx, owner, nil); return err },
			"doctor":   func() error { _, err := c.Doctor(ctx); return err },
			"rungs":    func() error { _, err := c.Rungs(ctx); return err },
		} {
			got, ok := ask().(*glovebox.Error)
			if !ok {
				t.Fatalf("%s, %s: no *Error", code, name)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, %s: %s", code, name, diff)
			}
		}
	}
}

// TestReadsSurvive: what is read from the record, and what is asked for, arrives as it is.
func TestReadsSurvive(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	record, verification, report := filled[glovebox.Record](), filled[glovebox.Verification](), filled[glovebox.Report]()
	same := func(what string, got, want any, err error) {
		t.Helper()
		if diff := cmp.Diff(want, got, wholeBytes); diff != "" || err != nil {
			t.Errorf("%s: %v %s", what, err, diff)
		}
	}
	odd := "run /?#%2f.. é"
	w.trace = func(run string) (*glovebox.Record, error) { same("trace asked", run, odd, nil); return &record, nil }
	got, err := w.client.Trace(ctx, owner, odd)
	same("trace", got, &record, err)

	wantQuery := filled[glovebox.TraceQuery]()
	wantQuery.Status = glovebox.StatusWallLimit // none that is not known passes
	w.traces = func(q glovebox.TraceQuery) ([]glovebox.Record, error) {
		same("traces asked", q, wantQuery, nil)
		return []glovebox.Record{record, {}}, nil
	}
	list, err := w.client.Traces(ctx, owner, wantQuery)
	same("traces", list, []glovebox.Record{record, {}}, err)
	wantQuery = glovebox.TraceQuery{}
	_, err = w.client.Traces(ctx, owner, wantQuery)
	same("traces of nothing asked", nil, nil, err)

	wantHeads := filled[[]glovebox.TraceRef]()
	w.verify = func(heads []glovebox.TraceRef) (*glovebox.Verification, error) {
		same("verify asked", heads, wantHeads, nil)
		return &verification, nil
	}
	found, err := w.client.Verify(ctx, owner, wantHeads)
	same("verify", found, &verification, err)
	wantHeads = nil
	_, err = w.client.Verify(ctx, owner, nil)
	same("verify of nothing asked", nil, nil, err)

	w.doctor = func() (*glovebox.Report, error) { return &report, nil }
	told, err := w.client.Doctor(ctx)
	same("doctor", told, &report, err)

	wantRungs := filled[[]glovebox.Rung]()
	w.rungs = func() ([]glovebox.Rung, error) { return wantRungs, nil }
	rungs, err := w.client.Rungs(ctx)
	same("rungs", rungs, wantRungs, err)

	piece := bytes.Repeat([]byte{0, 0xff, '\n'}, 1<<20)
	w.output = func(run, stream string, offset, limit int64) ([]byte, error) {
		same("output asked", []any{run, stream, offset, limit}, []any{odd, "stderr", int64(7), int64(1 << 24)}, nil)
		return piece, nil
	}
	printed, err := w.client.Output(ctx, owner, odd, "stderr", 7, 1<<24)
	same("output", printed, piece, err)

	w.artifact = func(run, path string) (io.ReadCloser, error) {
		same("artifact asked", []string{run, path}, []string{odd, "a%FF b/c?d/é#"}, nil)
		return io.NopCloser(bytes.NewReader(piece)), nil
	}
	file, err := w.client.Artifact(ctx, owner, odd, "a%FF b/c?d/é#")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	read, err := io.ReadAll(file)
	same("artifact", read, piece, err)
}

// TestBrokenArtifact: the beginning of a file is not taken for all of it.
func TestBrokenArtifact(t *testing.T) {
	w := newWorld(t)
	w.artifact = func(string, string) (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(strings.NewReader(strings.Repeat("begin", 1<<16)), failing{})), nil
	}
	file, err := w.client.Artifact(t.Context(), owner, "r", "x")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if b, err := io.ReadAll(file); err == nil {
		t.Errorf("read %d bytes without an error", len(b))
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("disk") }
