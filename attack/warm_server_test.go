package attack_test

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"glovebox"
	"glovebox/client"
)

// TestLT11ServerKilled kills a server that has sandboxes ready, under load, again and again: all that it had is gone within
// two seconds, and the next server removes its folders and groups and ends its records.
func TestLT11ServerKilled(t *testing.T) {
	l := need(t)
	dir, err := os.MkdirTemp(l.dir, "server-")
	if err != nil {
		t.Fatal(err)
	}
	s := &soak{laboratory: &laboratory{dir: dir, bin: l.bin, data: filepath.Join(dir, "data"), cgroup: l.cgroup + "-server",
		secrets: l.secrets, uids: idRange{l.uids.start + 0x1800000, 4096}}}
	if err := os.Mkdir(s.data, 0o700); err != nil {
		t.Fatal(err)
	}
	config, socket := filepath.Join(dir, "glovebox.yaml"), filepath.Join(dir, "sock")
	if err := s.writeConfig(config, s.cgroup, s.uids); err != nil {
		t.Fatal(err)
	}
	rounds := 4
	if long() {
		rounds = 40
	}
	served := 0
	for range rounds + 1 {
		served += s.serveAndDie(t, config, socket)
	}
	out, err := s.glovebox(t.Context(), "run", "--config", config, "--trust", "model", "--local", "-c", "pass").CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	settle(10*time.Second, func() bool {
		runs, _ := os.ReadDir(filepath.Join(s.data, "runs"))
		return len(runs)+len(s.groups()) == 0
	})
	if runs, _ := os.ReadDir(filepath.Join(s.data, "runs")); len(runs) > 0 || len(s.groups()) > 0 {
		t.Errorf("left: %v, %q", runs, s.groups())
	}
	s.checkRecords(t, config, served)
	for _, dir := range groupDirs(s.cgroup) {
		if err := removeGroup(dir); err != nil {
			t.Error(err)
		}
	}
}

// serveAndDie starts a server, asks it for runs, kills it at some moment and returns how many runs it served.
func (s *soak) serveAndDie(t *testing.T, config, socket string) (served int) {
	t.Helper()
	cmd := s.glovebox(context.Background(), "serve", "--config", config, "--listen", "unix:"+socket)
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := client.New(client.Config{Socket: socket, UID: os.Getuid()})
	ask := func() (*glovebox.Result, error) {
		return c.Run(t.Context(), owner, glovebox.Request{Code: "import time; time.sleep(0.01); print(1)", Trust: glovebox.TrustModel}, nil)
	}
	up := settle(10*time.Second, func() bool { _, err := ask(); return err == nil })
	if !up {
		t.Error("the server does not answer")
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	stop := make(chan struct{})
	for range 3 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if res, err := ask(); err == nil {
					mu.Lock()
					if served++; !res.OK || string(res.Stdout) != "1\n" {
						t.Errorf("%+v", res)
					}
					mu.Unlock()
				}
			}
		})
	}
	time.Sleep(time.Duration(rand.IntN(2000)) * time.Millisecond)
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	cmd.Wait()
	close(stop)
	all.Wait()
	c.Close()
	if !settle(2*time.Second, func() bool { return len(s.survivors()) == 0 }) {
		t.Errorf("two seconds after the server's death: %q", s.survivors())
	}
	return served
}

// checkRecords demands that every run has an end.
func (s *soak) checkRecords(t *testing.T, config string, served int) {
	t.Helper()
	out, err := s.glovebox(t.Context(), "trace", "ls", "--json", "--config", config).Output()
	var records []record
	if err != nil || json.Unmarshal(out, &records) != nil || len(records) < min(served, 20) {
		t.Errorf("%v, %d records of %d runs", err, len(records), served)
	}
	for _, r := range records {
		if r.State != "ended" && r.State != "interrupted" {
			t.Errorf("record %+v", r)
		}
	}
	if served < 20 {
		t.Errorf("%d runs were served", served)
	}
}
