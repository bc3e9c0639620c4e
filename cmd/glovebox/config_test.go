package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox"
	"glovebox/engine"
	"glovebox/policy"
)

const whole = `# everything there is
data_dir: /data
policy:
  trust: {influenced: process, hostile: microvm}
  limits:
    default: {wall: 30s, memory: 1GiB, cpus: 0.5}
    ceiling:
      wall: 10m
      files: 100000
      view: 4096
  input_roots: [/srv/in, "/srv/b c"]
drivers:
  process:
    accept: [landlock]
    cgroup: /glovebox/test
    uid_pool: "200000:4096"
    init: /opt/glovebox-init
  gvisor: {runsc: /opt/runsc}
  microvm: {emulated: true, qemu: /opt/qemu, kernel: /srv/vm}
  remote: {url: "unix:/run/other/sock", isolation: gvisor}
tenants:
  - {name: acme, rungs: [microvm, gvisor]}
  - name: other
    rungs: [remote]
memory_budget: 60%
trace:
  key: /etc/glovebox/trace.key
  heads: {file: /mnt/other/heads, syslog: /dev/log, webhook: "https://log.example.com/h?t=1"}
  retention: 30d
  data_limit: 10GiB
`

func TestConfiguration(t *testing.T) {
	tl := newTool(t)
	tl.write(t, "g.yaml", whole)
	if exit, _, errs := tl.run("run", "--config", "g.yaml", "-c", "1"); exit != 0 {
		t.Fatal(errs)
	}
	got := tl.settings
	if got.lines["policy.limits.ceiling.wall"] != 8 || got.file != "g.yaml" {
		t.Errorf("file %q, lines %v", got.file, got.lines)
	}
	want := policy.Config{
		TrustRungs: map[glovebox.Trust]glovebox.Isolation{"influenced": "process", "hostile": "microvm"},
		Limits: policy.Limits{Default: glovebox.Limits{Wall: 30 * time.Second, Memory: glovebox.GiB, CPUs: 0.5},
			Ceiling: glovebox.Limits{Wall: 10 * time.Minute, Files: 100000, View: 4096}},
		InputRoots: []string{"/srv/in", "/srv/b c"},
		Remote:     "gvisor",
		OnlyNamed:  []glovebox.Isolation{"microvm"}, // it is emulated
		Tenants:    map[string][]glovebox.Isolation{"acme": {"microvm", "gvisor"}, "other": {"remote"}},
	}
	if diff := cmp.Diff(want, got.policy); diff != "" {
		t.Error(diff)
	}
	p := processSettings{accept: []string{"landlock"}, cgroup: "/glovebox/test", init: "/opt/glovebox-init",
		uids: uidPool{200000, 4096}}
	if diff := cmp.Diff(p, got.process, cmp.AllowUnexported(processSettings{}, uidPool{})); diff != "" {
		t.Error(diff)
	}
	if got.gvisor.runsc != "/opt/runsc" || got.microvm != (microvmSettings{"/opt/qemu", "/srv/vm", true}) {
		t.Errorf("drivers %+v %+v", got.gvisor, got.microvm)
	}
	if got.remote != (remoteSettings{url: "unix:/run/other/sock"}) {
		t.Errorf("drivers.remote %+v", got.remote)
	}
	if got.memory != (memoryBudget{percent: 60}) {
		t.Errorf("memory_budget %+v", got.memory)
	}
	tr := engine.Trace{Key: "/etc/glovebox/trace.key", HeadsFile: "/mnt/other/heads", HeadsSyslog: "/dev/log",
		HeadsWebhook: "https://log.example.com/h?t=1",
		Retention:    30 * 24 * time.Hour, DataLimit: 10 * glovebox.GiB}
	if got.trace != tr {
		t.Errorf("trace %+v", got.trace)
	}
	if got.dataDir != "/data" {
		t.Errorf("data_dir %q", got.dataDir)
	}
}

// TestBadConfiguration: each is refused with its line, its key and a fix, and nothing runs; CF-05 and CF-07 of the battery.
func TestBadConfiguration(t *testing.T) {
	for _, c := range []struct {
		name, text string
		exit       int
		says       []string
	}{
		{"top typo", "data_dri: /x\n", 125, []string{"g.yaml:1: data_dri", "did you mean data_dir?"}},
		{"deep typo", "policy:\n  limits:\n    default: {wal: 3s}\n", 125,
			[]string{"g.yaml:3: policy.limits.default.wal", "did you mean policy.limits.default.wall?"}},
		{"trust typo", "policy:\n  trust:\n    hostil: gvisor\n", 125,
			[]string{":3: policy.trust.hostil", "policy.trust.hostile?"}},
		{"far key", "xyzzy: 1\n", 125, []string{"there is no such key", "data_dir, drivers"}},
		{"rung typo", "policy:\n  trust:\n    hostile: gviser\n", 125,
			[]string{":3: policy.trust.hostile", "did you mean gvisor?"}},
		{"lower rung", "policy:\n  trust: {model: gvisor, influenced: process}\n", 125, []string{":2: policy.trust.influenced"}},
		{"above ceiling", "policy:\n  limits:\n    default: {disk: 2GiB}\n    ceiling: {disk: 1GiB}\n", 125,
			[]string{":3: policy.limits.default.disk", "1GiB"}},
		{"bare time", "policy: {limits: {default: {wall: 60}}}\n", 125, []string{"policy.limits.default.wall", "say 60s"}},
		{"zero", "policy: {limits: {ceiling: {memory: 0}}}\n", 125, []string{"policy.limits.ceiling.memory", "0 is no limit"}},
		{"negative", "policy: {limits: {ceiling: {processes: -1}}}\n", 125, []string{"policy.limits.ceiling.processes"}},
		{"not a number", "policy: {limits: {default: {cpus: .nan}}}\n", 125, []string{"policy.limits.default.cpus"}},
		{"word for size", "policy: {limits: {default: {memory: lots}}}\n", 125, []string{"policy.limits.default.memory"}},
		{"list for value", "data_dir: [/a]\n", 125, []string{":1: data_dir", "plain value"}},
		{"value for list", "policy: {input_roots: /srv}\n", 125, []string{"policy.input_roots", "[a, b]"}},
		{"value for keys", "policy: gvisor\n", 125, []string{":1: policy", "keys are expected"}},
		{"no value", "data_dir:\n", 125, []string{"data_dir", "plain value"}},
		{"true", "data_dir: true\n", 125, []string{"data_dir"}},
		{"twice", "data_dir: /a\ndata_dir: /b\n", 125, []string{"g.yaml:2", "data_dir"}},
		{"anchor", "data_dir: &a /a\n", 125, []string{"data_dir"}},
		{"alias", "policy: {input_roots: &r [/a]}\n", 125, []string{"policy.input_roots"}},
		{"merge", "policy:\n  <<: {input_roots: [/a]}\n", 125, []string{"g.yaml:2"}},
		{"tag", "data_dir: !!binary L2E=\n", 125, []string{"data_dir"}},
		{"two documents", "data_dir: /a\n---\ndata_dir: /b\n", 125, []string{"one document"}},
		{"a list", "- a\n", 125, []string{"keys are expected"}},
		{"no YAML", "a: [\n", 125, []string{"g.yaml:1", "no YAML"}},
		{"binary", "\x00\xff\xfe", 125, []string{"g.yaml"}},
		{"relative data", "data_dir: data\n", 125, []string{"data_dir", "absolute"}},
		{"tilde", "data_dir: ~/data\n", 125, []string{"data_dir", "absolute"}},
		{"root tilde", "policy: {input_roots: [~/in]}\n", 125, []string{"policy.input_roots"}},
		{"root pattern", "policy:\n  input_roots:\n    - /srv/*\n", 125, []string{"g.yaml:2: policy.input_roots"}},
		{"ids", "drivers: {process: {uid_pool: \"0:10\"}}\n", 125, []string{"drivers.process.uid_pool", "START:COUNT"}},
		{"ids wrap", "drivers: {process: {uid_pool: \"4294967290:100\"}}\n", 125, []string{"drivers.process.uid_pool"}},
		{"listen", "listen: [localhost:80]\n", 126, []string{":1: listen", "not available in this version"}},
		{"listen nowhere", "listen: [sock]\n", 125, []string{":1: listen", "no address of a socket"}},
		{"tenants", "tenants: {acme: [gvisor]}\n", 125, []string{":1: tenants", "write a list"}},
		{"tenant without a name", "tenants:\n  - {rungs: [gvisor]}\n", 125, []string{":2: tenants", "no name"}},
		{"tenant without rungs", "tenants:\n  - {name: acme}\n", 125, []string{":2: tenants", "no rung at all"}},
		{"tenant's rung typo", "tenants:\n  - {name: a, rungs: [gvisor]}\n  - {name: acme, rungs: [gviser]}\n", 125,
			[]string{":3: tenants", "did you mean gvisor?"}},
		{"tenant twice", "tenants: [{name: a, rungs: [gvisor]}, {name: a, rungs: [process]}]\n", 125, []string{"there twice"}},
		{"tenant typo", "tenants:\n  - {name: acme, rung: [gvisor]}\n", 125, []string{":2: tenants.1.rung", "tenants.1.rungs?"}},
		{"tenant's budget", "tenants:\n  - {name: acme, budget: {cpu: 1h}}\n", 126, []string{":2: tenants.1.budget", "not available"}},
		{"remote by TCP", "drivers: {remote: {url: \"https://other:443\"}}\n", 126, []string{"drivers.remote.url", "not available"}},
		{"remote nowhere", "drivers: {remote: {url: other}}\n", 125, []string{"drivers.remote.url", "unix:/path"}},
		{"remote's token", "drivers: {remote: {token_file: /x}}\n", 126, []string{"drivers.remote.token_file", "not available"}},
		{"demand of nobody", "drivers: {remote: {isolation: gvisor}}\n", 125, []string{":1: drivers.remote.isolation", "url"}},
		{"demand typo", "drivers: {remote: {url: \"unix:/x\", isolation: remote}}\n", 125,
			[]string{":1: drivers.remote.isolation", "no rung that a Glovebox has itself"}},
		{"images", "images: {alow: [a]}\n", 125, []string{"images.alow", "did you mean images.allow"}},
		{"memory budget in words", "memory_budget: most\n", 125, []string{":1: memory_budget"}},
		{"memory budget beyond all", "memory_budget: 101%\n", 125, []string{":1: memory_budget", "1% to 100%"}},
		{"emulated", "drivers: {microvm: {emulated: maybe}}\n", 125, []string{"drivers.microvm.emulated", "true or false"}},
		{"relative kernel", "drivers: {microvm: {kernel: boot}}\n", 125, []string{"drivers.microvm.kernel", "absolute"}},
		{"runsc typo", "drivers:\n  gvisor: {runcs: /x}\n", 125, []string{":2: drivers.gvisor.runcs", "drivers.gvisor.runsc?"}},
	} {
		t.Run(c.name, func(t *testing.T) { refusedConfig(t, c.text, c.exit, c.says) })
	}
}

func TestBadTraceConfiguration(t *testing.T) {
	for _, c := range []struct {
		name, text string
		exit       int
		says       []string
	}{
		{"retention", "trace: {retention: 30}\n", 125, []string{"trace.retention", "say 30s"}},
		{"half a day", "trace: {retention: 0.5d}\n", 125, []string{"trace.retention", "30d"}},
		{"no retention", "trace: {retention: 0d}\n", 125, []string{"trace.retention"}},
		{"negative retention", "trace: {retention: -3h}\n", 125, []string{"trace.retention", "negative"}},
		{"no data", "trace: {data_limit: 0}\n", 125, []string{"trace.data_limit"}},
		{"key", "trace: {key: trace.key}\n", 125, []string{"trace.key", "absolute"}},
		{"key typo", "trace:\n  kye: /x\n", 125, []string{"g.yaml:2: trace.kye", "did you mean trace.key?"}},
		{"heads typo", "trace: {heads: {fille: /x}}\n", 125, []string{"trace.heads.fille", "did you mean trace.heads.file?"}},
		{"webhook", "trace: {heads: {webhook: \"/dev/log?token=x1y2\"}}\n", 125, []string{":1: trace.heads.webhook", "https://"}},
		{"otlp", "trace: {otlp: x}\n", 126, []string{"trace.otlp", "not available"}},
	} {
		t.Run(c.name, func(t *testing.T) { refusedConfig(t, c.text, c.exit, c.says) })
	}
}

// TestBadEgress: likewise of what may leave.
func TestBadEgress(t *testing.T) {
	for _, c := range []struct {
		name, text string
		exit       int
		says       []string
	}{
		{"egress key", "policy:\n  egress: {rules: [{hots: a.example.com}]}\n", 125, []string{":2: policy.egress.rules.1.hots", "host"}},
		{"egress wide", "policy:\n  egress:\n    rules:\n    - host: a.example.com\n    - host: '*.com'\n", 125,
			[]string{":5: policy.egress.rules", "too wide"}},
		{"egress port", "policy: {egress: {rules: [{host: a.example.com, ports: [0]}]}}\n", 125, []string{"1 to 65535"}},
		{"egress no methods", "policy:\n  egress:\n    rules:\n    - host: a.example.com\n      methods: []\n", 125,
			[]string{":5: policy.egress.rules.1.methods", "the list is empty"}},
		{"egress no list", "policy: {egress: {rules: null}}\n", 125, []string{"policy.egress.rules", "no list"}},
		{"egress null host", "policy: {egress: {rules: [{host: null}]}}\n", 125, []string{"policy.egress.rules.1.host", "plain value"}},
		{"egress without host", "policy: {egress: {rules: [{ports: [443]}]}}\n", 125, []string{"host"}},
		{"egress infix star", "policy: {egress: {rules: [{host: '*evil.com'}]}}\n", 125, []string{"*.example.com"}},
		{"egress end star", "policy: {egress: {rules: [{host: 'good.*'}]}}\n", 125, []string{"*.example.com"}},
		{"egress suffix", "policy: {egress: {rules: [{host: '*.github.io'}]}}\n", 125, []string{"too wide"}},
		{"egress all", "policy: {egress: {rules: [{host: '*'}]}}\n", 125, []string{"*.example.com"}},
		{"egress address", "policy: {egress: {rules: [{host: 10.0.0.1}]}}\n", 125, []string{"address"}},
		{"tenant's egress", "tenants:\n- name: acme\n  rungs: [gvisor]\n  egress:\n    rules:\n    - host: '*.com'\n", 125,
			[]string{":6: tenants.1.egress.rules", "too wide"}},
		{"tenant's private", "tenants: [{name: acme, rungs: [gvisor], egress: {allow_private: [10.0.0.0/8]}}]\n", 125,
			[]string{"tenants.1.egress.allow_private", "no such key"}},
		{"tenant's secret", "tenants: [{name: acme, rungs: [gvisor], secrets: [TOKEN]}]\n", 125, []string{"there is no secret"}},
		{"egress expiry", "policy: {egress: {rules: [{host: a.example.com, expires: soon}]}}\n", 125, []string{"no moment"}},
		{"egress private", "policy: {egress: {allow_private: [127.0.0.0/8]}}\n", 125, []string{"policy.egress.allow_private",
			"not within a private network"}},
		{"egress beyond", "policy:\n  egress:\n    rules: [{host: a.example.com, allow_private: [10.0.0.0/8]}]\n" +
			"    allow_private: [10.1.0.0/16]\n", 125, []string{"policy.egress.rules.1", "not within policy.egress.allow_private"}},
	} {
		t.Run(c.name, func(t *testing.T) { refusedConfig(t, c.text, c.exit, c.says) })
	}
}

// refusedConfig runs a program with a configuration that must be refused, saying this.
func refusedConfig(t *testing.T, text string, want int, says []string) {
	tl := newTool(t)
	tl.write(t, "g.yaml", text)
	exit, out, errs := tl.run("run", "--config", "g.yaml", "-c", "stdout ran")
	if exit != want || out != "" {
		t.Errorf("exit code %d, want %d; stdout %q", exit, want, out)
	}
	for _, s := range append(says, "\nwhy: ", "\nfix: ") {
		if !strings.Contains(errs, s) {
			t.Errorf("no %q in:\n%s", s, errs)
		}
	}
}

func TestMemoryBudget(t *testing.T) {
	for text, want := range map[string]memoryBudget{
		"100%": {percent: 100}, "\"5 %\"": {percent: 5}, "8GiB": {size: 8 * glovebox.GiB}, "1000000000": {size: 1e9},
	} {
		tl := newTool(t)
		tl.write(t, "g.yaml", "memory_budget: "+text+"\n")
		if exit, _, errs := tl.run("run", "--config", "g.yaml", "-c", "1"); exit != 0 || tl.settings.memory != want {
			t.Errorf("%s is %+v, want %+v\n%s", text, tl.settings.memory, want, errs)
		}
	}
}

func TestBadMemoryBudget(t *testing.T) {
	for text, says := range map[string]string{"0": "limit of 0", "0%": "1% to 100%", "0.5%": "1% to 100%"} {
		tl := newTool(t)
		tl.write(t, "g.yaml", "memory_budget: "+text+"\n")
		if exit, _, errs := tl.run("run", "--config", "g.yaml", "-c", "1"); exit != 125 || !strings.Contains(errs, says) {
			t.Errorf("%s: exit code %d\n%s", text, exit, errs)
		}
	}
}

func TestEmptyConfigurations(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing\n", "---\n"} {
		tl := newTool(t)
		tl.write(t, "g.yaml", text)
		if exit, _, errs := tl.run("run", "--config", "g.yaml", "-c", "1"); exit != 0 {
			t.Errorf("%q: %s", text, errs)
		}
	}
}

// TestPlacesOfConfiguration: --config, else the user's folder; one that cannot be used is never passed over.
func TestPlacesOfConfiguration(t *testing.T) {
	tl := newTool(t)
	home := tl.env["HOME"]
	tl.run("run", "-c", "1")
	if got, want := tl.settings.dataDir, filepath.Join(home, ".local/share/glovebox"); got != want {
		t.Errorf("data_dir %q, want %q", got, want)
	}
	tl.env["XDG_DATA_HOME"] = "/xdg"
	tl.run("run", "-c", "1")
	if got := tl.settings.dataDir; got != "/xdg/glovebox" {
		t.Errorf("data_dir %q", got)
	}
	if err := os.MkdirAll(filepath.Join(home, ".config/glovebox"), 0o700); err != nil {
		t.Fatal(err)
	}
	users := filepath.Join(home, ".config/glovebox/glovebox.yaml")
	tl.write(t, users, "data_dir: /users\n")
	tl.write(t, "mine.yaml", "data_dir: /mine\n")
	tl.run("run", "-c", "1")
	if got := tl.settings.dataDir; got != "/users" {
		t.Errorf("data_dir %q", got)
	}
	tl.run("run", "--config", "mine.yaml", "-c", "1")
	if got := tl.settings.dataDir; got != "/mine" {
		t.Errorf("data_dir %q", got)
	}
	for _, mode := range []os.FileMode{0o602, 0o620, 0o666} {
		if err := os.Chmod(users, mode); err != nil {
			t.Fatal(err)
		}
		if exit, _, errs := tl.run("run", "-c", "1"); exit != 125 || !strings.Contains(errs, "chmod go-w") {
			t.Error(mode, exit, errs)
		}
	}
	// A link is no way around: it is the file that counts.
	if err := os.Symlink(users, "link.yaml"); err != nil {
		t.Fatal(err)
	}
	exit, _, errs := tl.run("run", "--config", "link.yaml", "-c", "1")
	if exit != 125 || !strings.Contains(errs, "chmod go-w") {
		t.Error(exit, errs)
	}
	os.Remove(users)
	os.Mkdir(users, 0o700)
	if exit, _, errs := tl.run("run", "-c", "1"); exit != 125 {
		t.Error(exit, errs)
	}
	exit, _, errs = tl.run("run", "--config", "absent.yaml", "-c", "1")
	if exit != 125 || !strings.Contains(errs, "absent.yaml") {
		t.Error(exit, errs)
	}
	delete(tl.env, "HOME")
	delete(tl.env, "XDG_DATA_HOME")
	if exit, _, errs := tl.run("run", "-c", "1"); exit != 126 || !strings.Contains(errs, "HOME") {
		t.Error(exit, errs)
	}
	tl.app.uid = 0
	tl.run("run", "-c", "1")
	if got := tl.settings.dataDir; got != "/var/lib/glovebox" {
		t.Errorf("data_dir %q", got)
	}
}

func TestConfigurationsWriters(t *testing.T) {
	for _, c := range []struct {
		name string
		mode os.FileMode
		uid  uint32
		euid int
		says string // the command that mends it, or nothing
	}{
		{"one's own", 0o600, 1000, 1000, ""},
		{"one's own, read by all", 0o644, 1000, 1000, ""},
		{"root's", 0o644, 0, 1000, ""},
		{"root's own", 0o640, 0, 0, ""},
		{"another's", 0o600, 1001, 1000, "chown 1000 "},
		{"a user's, read by root", 0o600, 1000, 0, "chown 0 "},
		{"the group writes", 0o660, 1000, 1000, "chmod go-w "},
		{"root's, the group writes", 0o664, 0, 1000, "chmod go-w "},
		{"all write", 0o646, 1000, 1000, "chmod go-w "},
	} {
		err := checkWriters("/etc/g.yaml", c.mode, c.uid, c.euid)
		var e *glovebox.Error
		switch {
		case c.says == "" && err == nil:
		case c.says != "" && errors.As(err, &e) && strings.Contains(e.Fix, c.says+`"/etc/g.yaml"`):
		default:
			t.Errorf("%s: %#v, want %q", c.name, err, c.says)
		}
	}
}

// TestConfigurationIsAFile: what is none is refused at once, a fifo that nobody writes to included.
func TestConfigurationIsAFile(t *testing.T) {
	tl := newTool(t)
	if err := errors.Join(syscall.Mkfifo("fifo", 0o600), os.Mkdir("folder", 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fifo", "folder", "/dev/null"} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			if exit, _, errs := tl.run("run", "--config", name, "-c", "1"); exit != 125 || !strings.Contains(errs, "regular file") {
				t.Error(name, exit, errs)
			}
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the command hangs", name)
		}
	}
}

// FuzzConfiguration: whatever the file holds, it is understood or refused, with a fix.
func FuzzConfiguration(f *testing.F) {
	for _, text := range []string{
		whole, "", "a: [", "policy: {trust: {hostile: process}}", "? a\n: b", "a: &x\nb: *x", "- - -", "{",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 4096 {
			return
		}
		s := settings{file: "f", lines: map[string]int{}}
		if err := s.parse(text); err != nil {
			if e, ok := err.(*glovebox.Error); !ok || e.Fix == "" || e.Public == "" {
				t.Errorf("%#v", err)
			}
		}
	})
}

// TestEgressConfiguration: what is written is what is had, and a list of nothing is nothing.
func TestEgressConfiguration(t *testing.T) {
	tl := newTool(t)
	tl.write(t, "g.yaml", `policy:
  egress:
    allow_private: [10.0.0.0/8]
    rules:
      - {id: api, host: api.example.com, ports: [443, 8443], protocols: [https], methods: [GET], paths: [/v1/**], body_limit: 1MiB,
         websocket: true, allow_private: [10.1.0.0/16], push: [refs/heads/x], expires: "2199-12-31T18:00:00+01:00"}
      - {host: pin.example.com, mode: sni, allow_private: []}
      - {host: "*.bad.example.com", deny: true}
tenants:
  - {name: acme, rungs: [gvisor], egress: {rules: []}, secrets: []}
  - {name: other, rungs: [gvisor], egress: {rules: [{host: other.example.com}]}}
`)
	if exit, _, errs := tl.run("run", "--trust", "model", "--config", "g.yaml", "-c", "1"); exit != 0 {
		t.Fatal(errs)
	}
	want := policy.Egress{AllowPrivate: []string{"10.0.0.0/8"}, Rules: []glovebox.EgressRule{
		{ID: "api", Host: "api.example.com", Ports: []int{443, 8443}, Protocols: []string{"https"}, Methods: []string{"GET"},
			Paths: []string{"/v1/**"}, BodyLimit: glovebox.MiB, WebSocket: true, AllowPrivate: []string{"10.1.0.0/16"},
			Push: []string{"refs/heads/x"}, Expires: time.Date(2199, 12, 31, 17, 0, 0, 0, time.UTC)},
		{Host: "pin.example.com", Mode: "sni", AllowPrivate: []string{}},
		{Host: "*.bad.example.com", Deny: true},
	}, Tenants: map[string][]glovebox.EgressRule{"acme": {}, "other": {{Host: "other.example.com"}}}}
	if diff := cmp.Diff(want, tl.settings.policy.Egress); diff != "" {
		t.Error(diff)
	}
	for _, r := range want.Rules { // as policy show prints it
		again := settings{lines: map[string]int{}}
		if err := again.parse([]byte("policy:\n  egress:\n    rules:\n      - " + policy.Line(r))); err != nil {
			t.Error(err)
		} else if diff := cmp.Diff([]glovebox.EgressRule{r}, again.policy.Egress.Rules); diff != "" {
			t.Error(diff)
		}
	}
	if diff := cmp.Diff(map[string][]string{"acme": {}}, tl.settings.policy.TenantSecrets); diff != "" {
		t.Error(diff)
	}
}
