package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

// TestDigest: two configurations with one difference anywhere differ in their digest, which tells nothing else.
func TestDigest(t *testing.T) {
	tl := newTool(t)
	base, err := tl.app.settings()
	if err != nil {
		t.Fatal(err)
	}
	want := base.digest()
	if len(want) != 64 {
		t.Fatalf("digest %q", want)
	}
	for _, text := range []string{
		"", "memory_budget: 50%\n", "memory_budget: 1GiB\n", "trace: {retention: 30d}\n", "trace: {heads: {file: /x}}\n",
		"policy: {trust: {influenced: gvisor}}\n", "policy: {trust: {hostile: microvm}}\n",
		"policy: {limits: {default: {wall: 2s}}}\n", "policy: {limits: {ceiling: {wall: 2m}}}\n", "policy: {input_roots: [/a, /b]}\n",
		"policy: {input_roots: [\"/a /b\"]}\n", "data_dir: /x\n", "drivers: {process: {init: /x}}\n",
		"pool: off\n", "listen: [unix:/x/y]\n", "drivers: {process: {accept: [x]}}\n", "drivers: {process: {cgroup: /x}}\n", "drivers: {process: {uid_pool: \"1000:5\"}}\n",
	} {
		tl.write(t, "glovebox.yaml", text)
		tl.app.config = filepath.Join(tl.env["HOME"], "glovebox.yaml")
		s, err := tl.app.settings()
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if same := s.digest() == want; same != (text == "") {
			t.Errorf("%q: the same digest: %v", text, same)
		}
	}
	noPointers(t, reflect.TypeFor[settings](), "settings")
}

// noPointers fails where what is printed of a value would be where it lies and not what it is.
func noPointers(t *testing.T, typ reflect.Type, at string) {
	if typ.Implements(reflect.TypeFor[fmt.GoStringer]()) { // time.Time, which is printed as what it is, and variables
		return
	}
	switch typ.Kind() {
	case reflect.Pointer, reflect.Func, reflect.Chan, reflect.Interface, reflect.UnsafePointer:
		t.Errorf("%s is a %s: its digest would differ each time", at, typ.Kind())
	case reflect.Struct:
		for i := range typ.NumField() {
			noPointers(t, typ.Field(i).Type, at+"."+typ.Field(i).Name)
		}
	case reflect.Slice, reflect.Array, reflect.Map:
		noPointers(t, typ.Elem(), at+"[]")
	}
}

// TestNearbySocket: a socket is looked for at the usual place, and taken only in a folder of the caller's own.
func TestNearbySocket(t *testing.T) {
	tl := newTool(t)
	a := tl.app
	a.uid = os.Getuid()
	dir := t.TempDir()
	a.runtime, tl.env["XDG_RUNTIME_DIR"] = dir, dir
	if got := a.nearbySocket(); got != "" {
		t.Errorf("found %q where there is none", got)
	}
	socket := filepath.Join(dir, "glovebox", "sock")
	claim, err := claimSocket(socket, a.uid)
	if err != nil {
		t.Fatal(err)
	}
	defer claim.close()
	l, err := claim.listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := a.nearbySocket(); got != socket {
		t.Errorf("found %q, want %q", got, socket)
	}
	for _, name := range []string{"glovebox", "glovebox/sock"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	a.uid++
	if a.uid > 1 { // else it is looked for elsewhere
		if got := a.nearbySocket(); got != "" {
			t.Errorf("found another user's %q", got)
		}
	}
	a.uid--
	if err := os.Rename(filepath.Join(dir, "glovebox"), filepath.Join(dir, "real")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(dir, "glovebox")); err != nil {
		t.Fatal(err)
	}
	if got := a.nearbySocket(); got != "" {
		t.Errorf("followed a link to %q", got)
	}
	a.uid, tl.env["XDG_RUNTIME_DIR"] = 1000, "relative"
	if got := a.defaultSocket(); got != "" {
		t.Errorf("a relative folder was taken: %q", got)
	}
	if _, err := a.listenAddress(nil, nil); err == nil {
		t.Error("there is a place to listen without a folder for it")
	}
}

// TestNoServerIsCheap: to find that there is no server costs about one look.
func TestNoServerIsCheap(t *testing.T) {
	tl := newTool(t)
	begun := time.Now()
	const times = 1000
	for range times {
		if tl.app.nearbySocket() != "" {
			t.Fatal("there is one")
		}
	}
	if took := time.Since(begun) / times; took > 200*time.Microsecond {
		t.Errorf("it takes %v", took)
	}
}
