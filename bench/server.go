package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"glovebox"
)

// server is a glovebox that serves on a socket of its own, with records of its own.
type server struct {
	process *companion // nil when it has ended
	client  glovebox.Service
	usage   string // the file that counts the CPU time of its sandboxes
}

const (
	startLimit  = 20 * time.Second // until a server answers
	stopLimit   = 30 * time.Second
	settleLimit = 5 * time.Second
)

// configuration writes a configuration whose records are in a new folder, and returns its path.
func (b *bench) configuration(name string, more map[string]any) (string, error) {
	dir, err := b.folder(name)
	if err != nil {
		return "", err
	}
	all := map[string]any{"data_dir": filepath.Join(dir, "data")}
	for _, keys := range []map[string]any{b.cfg.Settings, more} {
		for key, value := range keys {
			all[key] = value
		}
	}
	text, err := json.Marshal(all) // which YAML reads too
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "glovebox.yaml")
	return file, os.WriteFile(file, append(text, '\n'), 0o600)
}

// serve starts a server and returns when it answers. It is stopped by b.close, or sooner by its stop.
func (b *bench) serve(ctx context.Context, more map[string]any) (*server, error) {
	config, err := b.configuration("serve", more)
	if err != nil {
		return nil, err
	}
	folder := filepath.Join(filepath.Dir(config), "run")
	if err := os.Mkdir(folder, 0o700); err != nil {
		return nil, err
	}
	socket := filepath.Join(folder, "sock")
	p, err := startCompanion([]string{b.cfg.Program, "--config", config, "serve", "--listen", "unix:" + socket})
	if err != nil {
		return nil, err
	}
	s := &server{process: p}
	b.servers = append(b.servers, s)
	until := time.Now().Add(startLimit)
	for {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		switch {
		case isDone(p.ended):
			return nil, fmt.Errorf("glovebox serve ended: %v: %.500s", p.err, strings.TrimSpace(p.said.kept.String()))
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case time.Now().After(until):
			return nil, fmt.Errorf("glovebox serve did not listen within %v", startLimit)
		}
		wait(ctx, 5*time.Millisecond)
	}
	s.client, err = b.cfg.Client(socket)
	return s, err
}

func (s *server) stop() error {
	var errs []error
	if s.client != nil {
		errs = append(errs, s.client.Close())
		s.client = nil
	}
	if s.process != nil {
		errs = append(errs, s.process.stop(stopLimit))
		s.process = nil
	}
	return errors.Join(errs...)
}

func (s *server) pid() int { return s.process.cmd.Process.Pid }

// findUsage finds out where the CPU time of its sandboxes is counted. There must be some.
func (s *server) findUsage() error {
	tree, err := descendants(s.pid())
	if err != nil {
		return err
	}
	group, err := sandboxesGroup(tree[1:])
	if err != nil {
		return err
	}
	s.usage, err = groupUsage(group)
	return err
}

// cpu is the CPU time of the server and of all sandboxes that it had and has.
func (s *server) cpu() (time.Duration, error) {
	tree, err := descendants(s.pid())
	if err != nil {
		return 0, err
	}
	sandboxed, err := readUsage(s.usage)
	return tree[0].own + sandboxed, err
}

// activity is a number that stays the same while the server and its sandboxes do nothing.
func (s *server) activity() (sum time.Duration, err error) {
	tree, err := descendants(s.pid())
	for _, t := range tree {
		sum += t.cpu
	}
	return sum, err
}

// settle waits until the server and its sandboxes do nothing any more.
func (s *server) settle(ctx context.Context) {
	until := time.Now().Add(settleLimit)
	last, quiet := time.Duration(-1), 0
	for quiet < 3 && ctx.Err() == nil && time.Now().Before(until) {
		now, err := s.activity()
		if err != nil {
			return
		}
		if now == last {
			quiet++
		} else {
			quiet = 0
		}
		last = now
		wait(ctx, 50*time.Millisecond)
	}
}

// warm runs the workload until the server answers it from a spare several times in a row, and reports whether it came to
// that.
func (b *bench) warm(ctx context.Context, s *server, f fence, j workload) bool {
	until := time.Now().Add(startLimit)
	for row := 0; row < 3; {
		if ctx.Err() != nil || time.Now().After(until) {
			return false
		}
		if o := b.request(ctx, s.client, f.request(j)); o.err == nil && o.start != "cold" {
			row++
		} else {
			row = 0
			wait(ctx, 100*time.Millisecond)
		}
	}
	s.settle(ctx)
	return true
}
