package imagebuild

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// goPrograms are where the tool may be; a person's own is not taken.
var goPrograms = []string{"/usr/local/go/bin/go", "/usr/bin/go"}

// goModules fetches Go modules with all that they need. Nothing is compiled. What it returns is from the tools' folder on.
func (f *fetcher) goModules(ctx context.Context, modules []string) (string, []Locked, error) {
	const fix = "check GOPROXY, and the names and versions: `go list -m MODULE@VERSION`"
	program := goPrograms[len(goPrograms)-1]
	for _, p := range goPrograms {
		if _, err := os.Stat(p); err == nil {
			program = p
			break
		}
	}
	dir, err := f.own("go")
	module := filepath.Join(dir, "module") // for a go.mod among temporary files go does not care
	if err == nil {
		_, err = f.own("go/module")
	}
	if err == nil {
		const name = "go/module/go.mod"
		err = errors.Join(f.root.WriteFile(name, []byte("module image\n\ngo 1.21\n"), 0o644), f.give(name))
	}
	if err != nil {
		return "", nil, fmt.Errorf("make a folder for go: %w", err)
	}
	env := []string{"TMPDIR=" + dir, "GOMODCACHE=" + dir + "/mod", "GOCACHE=" + dir + "/cache",
		"GOPATH=" + dir + "/path", "GOTOOLCHAIN=local",
		"GOFLAGS=-modcacherw", "GO111MODULE=on", "CGO_ENABLED=0", "GOVCS=*:off"}
	fmt.Fprintln(f.log, "fetching Go modules")
	if _, err := f.run(ctx, module, fix, env, append([]string{program, "get"}, modules...)...); err != nil {
		return "", nil, err
	}
	if _, err := f.run(ctx, module, fix, env, program, "mod", "download"); err != nil {
		return "", nil, err
	}
	text, err := f.readPlain("go/module/go.sum")
	if err != nil {
		return "", nil, fmt.Errorf("read what go has fetched: %w", err)
	}
	var list []Locked
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) == 3 {
			list = append(list, Locked{"go", words[0] + "@" + words[1], words[1], words[2]})
		}
	}
	return "go/mod/cache/download", list, nil
}

// give makes a file of a tool's folder the tool's own.
func (f *fetcher) give(name string) error {
	if f.who == nil {
		return nil
	}
	return f.root.Lchown(name, int(f.who.Uid), int(f.who.Gid))
}
