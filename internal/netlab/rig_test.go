package netlab_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/internal/netlab"
)

// binEnv is a folder with the binaries of a build, in place of one that the tests make.
const binEnv = "GLOVEBOX_TEST_BIN"

// bin is where the binaries are, or why there are none.
var bin, unbuilt = "", error(nil)

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "glovebox-netlab-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "netlab:", err)
		os.Exit(1)
	}
	if bin = os.Getenv(binEnv); bin == "" {
		bin, unbuilt = dir, build(dir)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// build makes the binaries. runsc takes minutes, so that it is the one that make build made, or there is no gVisor.
func build(dir string) error {
	cmd := exec.Command("go", "build", "-o", dir+"/", "glovebox/cmd/...")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w: %s", err, out)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	runsc, err := filepath.Abs("../../bin/runsc")
	if err == nil {
		if _, err := os.Stat(runsc); err != nil {
			return nil
		}
		text, err := os.ReadFile(runsc)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "runsc"), text, 0o755)
	}
	return err
}

// long reports whether the long forms were asked for.
func long() bool { return os.Getenv("GLOVEBOX_TEST_LONG") == "1" }

// rules are what the operator of the laboratory's machine allows. What a run may is what it asks for among these.
const rules = `
      - {id: good, host: good.test}
      - {id: bound, host: bound.test}
      - {id: echo, host: echo.test, websocket: true}
      - {id: wild, host: "*.wild.test"}
      - {id: git, host: git.test}
      - {id: index, host: index.test}
      - {id: v6, host: v6.test}
      - {id: open, host: open.test}
      - {id: sni, host: pinned.test, mode: sni}
      - {id: raw, host: raw.test}
      - {id: tcp, host: raw.test, ports: [9000], protocols: [tcp]}
      - {id: ssh, host: ssh.test, ports: [22], protocols: [tcp]}
      - {id: big, host: big.test, methods: [GET, POST], paths: ["/big", "/upload", "/status/*"], body_limit: 1MiB}
      - {id: bad1, host: selfsigned.test}
      - {id: bad2, host: wrongname.test}
      - {id: bad3, host: expired.test}
      - {id: bad4, host: old.test}
      - {id: gone, host: gone.test}
      - {id: gone2, host: nothing.test}
`

// private are the names that lead where nothing may lead; each has a rule.
var private = []string{"loopback.test", "loopback6.test", "ten.test", "metadata.test", "mapped.test", "mappedten.test", "nat64.test",
	"sixtofour.test", "zero.test", "shared.test", "azure.test", "aws6.test", "self.test", "self6.test", "inside.test", "broadcast.test",
	"multicast.test", "documentation.test", "compat.test", "teredo.test", "alias.test", "mixed.test", "rebind.test"}

// A rig is a laboratory with Glovebox on its machine.
type rig struct {
	*netlab.Lab
	t      *testing.T
	config string
	cgroup string
	user   int      // who runs it: 0 is root
	server string   // its socket, where runs go to a server
	flags  []string // of every run
}

// newRig makes one whose runs are cold ones, of root or of an ordinary user.
func newRig(t *testing.T, user int, more string) *rig {
	t.Helper()
	l := netlab.Start(t)
	if unbuilt != nil {
		t.Fatal(unbuilt)
	}
	r := &rig{Lab: l, t: t, user: user, config: filepath.Join(l.Dir, "glovebox.yaml"),
		cgroup: fmt.Sprintf("/glovebox-netlab-%d-%d", os.Getpid(), user)}
	text := fmt.Sprintf(`data_dir: %s
listen: ["unix:%s"]
gateway: {resolvers: [%s], roots: %s, proxy: none}
policy:
  trust: {influenced: process}
  egress:
    allow_private: [%s, %s]
    rules:%s`, filepath.Join(l.Dir, "data"), filepath.Join(l.Dir, "run", "sock"), netlab.Twin, l.CA, netlab.Link, netlab.Link6, rules)
	for _, name := range private {
		text += fmt.Sprintf("      - {host: %s}\n", name)
	}
	pool := 0x78000000 + (os.Getpid()%1024)*8192
	text += fmt.Sprintf("drivers:\n  process: {cgroup: %s, uid_pool: \"%d:4096\"}\n", r.cgroup, pool) + more
	if err := os.WriteFile(r.config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"data", "home", "run"} {
		dir := filepath.Join(l.Dir, name)
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, user, user)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(r.sweep)
	if user != 0 {
		r.handOver()
	}
	return r
}

// handOver makes the control groups that root gives an ordinary user on version 1, as doctor prints it.
func (r *rig) handOver() {
	for _, c := range []string{"memory", "pids", "cpu", "cpuacct", "cpuset", "freezer"} {
		top := "/sys/fs/cgroup/" + c
		if _, err := os.Stat(top); err != nil {
			r.t.Skip("not a machine of version 1, on which control groups can be given to a user as here")
		}
		dir := top + r.cgroup
		if err := os.Mkdir(dir, 0o755); err != nil {
			r.t.Fatal(err)
		}
		if c == "cpuset" {
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				text, err := os.ReadFile(filepath.Join(top, file))
				if err := errors.Join(err, os.WriteFile(filepath.Join(dir, file), text, 0o644)); err != nil {
					r.t.Fatal(err)
				}
			}
		}
		for _, file := range []string{"", "cgroup.procs", "tasks"} {
			if err := os.Chown(filepath.Join(dir, file), r.user, r.user); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

// sweep removes the control groups that were made for the rig.
func (r *rig) sweep() {
	if r.user != 0 {
		os.RemoveAll(fmt.Sprintf("/tmp/glovebox-%d", r.user)) // of its locks
	}
	found, _ := filepath.Glob("/sys/fs/cgroup/*" + r.cgroup)
	for _, dir := range append(found, "/sys/fs/cgroup"+r.cgroup) {
		var err error
		for range 60 {
			if err = unix.Rmdir(dir); err == nil || errors.Is(err, unix.ENOENT) {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			r.t.Errorf("control group %s stays: %v", dir, err)
		}
	}
}

// command makes a call of glovebox.
func (r *rig) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := r.Command(ctx, filepath.Join(bin, "glovebox"), args...)
	cmd.Dir = filepath.Join(r.Dir, "home")
	cmd.Env = append(cmd.Env, "HOME="+cmd.Dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if r.user != 0 {
		id := uint32(r.user)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: id, Gid: id, Groups: []uint32{id}}
	}
	return cmd
}

// serve starts a server on the machine, which has sandboxes ready, and lets runs go there.
func (r *rig) serve() {
	r.t.Helper()
	r.server = "unix:" + filepath.Join(r.Dir, "run", "sock")
	cmd := r.command(context.Background(), "serve", "--config", r.config)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := r.Start(cmd); err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	r.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
		if r.t.Failed() {
			r.t.Logf("the server said:\n%.4000s", log.String())
		}
	})
	deadline := time.Now().Add(20 * time.Second)
	for {
		if _, err := os.Stat(filepath.Join(r.Dir, "run", "sock")); err == nil {
			return
		}
		select {
		case err := <-ended:
			ended <- err
			r.t.Fatalf("the server ended: %v\n%s", err, &log)
		default:
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("the server does not serve:\n%s", &log)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// A trial is one program and what it asks for.
type trial struct {
	lang  string // python unless said otherwise
	code  string
	allow []string
	flags []string
	args  []string
	stdin string
	// within bounds the command; zero means 60 s.
	within time.Duration
}

// ended is what came of a trial.
type ended struct {
	glovebox.Result
	Error *struct{ Code, Message, Fix string }
	exit  int
	out   string // of the program
	seen  netlab.Seen
	took  time.Duration
	log   string // what the command itself said
}

// run runs a trial and looks at what the internet saw.
func (r *rig) run(t *testing.T, x trial) ended {
	t.Helper()
	args := []string{"run", "--config", r.config, "--json", "--view-limit", "1MiB", "--trust", "model"}
	if r.server != "" {
		args = append(args, "--server", r.server)
	} else {
		args = append(args, "--local")
	}
	if x.lang != "" {
		args = append(args, "--lang", x.lang)
	}
	for _, a := range x.allow {
		args = append(args, "--allow", a)
	}
	args = append(append(append(args, r.flags...), x.flags...), "-c", x.code)
	if x.args != nil {
		args = append(append(args, "--"), x.args...)
	}
	within := x.within
	if within == 0 {
		within = time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	cmd := r.command(ctx, args...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Stdin = &out, &log, strings.NewReader(x.stdin)
	w, begun := r.Watch(), time.Now()
	err := r.Run(cmd)
	e := ended{took: time.Since(begun), log: log.String()}
	if failed := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failed) {
		t.Fatalf("%v: %s", err, &log)
	}
	e.exit = cmd.ProcessState.ExitCode()
	if e.seen, err = w.Seen(); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &e.Result); err != nil {
		t.Fatalf("no result (exit %d): %v\n%.2000s\n%.2000s", e.exit, err, &out, &log)
	}
	if err := json.Unmarshal(out.Bytes(), &struct{ Error any }{&e.Error}); err != nil {
		t.Fatal(err)
	}
	e.out = string(e.Stdout)
	if r.server != "" && e.Error == nil && e.Start == "cold" {
		t.Logf("cold, although a server ran it")
	}
	return e
}

// explain is for messages.
func (e ended) explain() string {
	text := fmt.Sprintf("status %s, exit %d, start %s, rung %s\nstdout %.3000q\nstderr %.2000q\nlog %.1000q\nqueries %v\ndialled %q\n"+
		"packets %v\nrequests %v\n", e.Status, e.exit, e.Start, e.Isolation, e.out, string(e.Stderr), e.log, e.seen.Queries, e.seen.Dialled,
		e.seen.Packets, e.seen.Requests)
	for _, f := range e.Egress {
		text += fmt.Sprintf("  %+v\n", f)
	}
	if e.Error != nil {
		text += fmt.Sprintf("error %+v\n", *e.Error)
	}
	return text
}

// dialled are the different servers that somebody connected to.
func (e ended) dialled() []string {
	all := slices.Clone(e.seen.Dialled)
	slices.Sort(all)
	return slices.Compact(all)
}

// asked are the different names that somebody asked for, in lower case.
func (e ended) asked() []string {
	var all []string
	for _, q := range e.seen.Queries {
		all = append(all, strings.ToLower(strings.TrimSuffix(q.Name, ".")))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// quiet demands that nothing at all left the machine.
func (e ended) quiet() error {
	if len(e.seen.Packets) > 0 || len(e.seen.Queries) > 0 || len(e.seen.Dialled) > 0 {
		return fmt.Errorf("something left: packets %v, queries %v, dialled %q", e.seen.Packets, e.seen.Queries, e.seen.Dialled)
	}
	return nil
}

// decided tells whether there is a decision about a host with a reason; an empty reason is one that allowed it.
func (e ended) decided(host, reason string) bool {
	return slices.ContainsFunc(e.Egress, func(f glovebox.EgressFlow) bool {
		return (host == "" || f.Host == host) && f.Allowed == (reason == "") && f.Reason == reason
	})
}
