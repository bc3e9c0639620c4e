package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"glovebox"
	"glovebox/engine"
	"glovebox/internal/broker"
	"glovebox/policy"
)

// settings are what the configuration says, with its defaults filled in.
type settings struct {
	dataDir string
	policy  policy.Config
	process processSettings
	gvisor  gvisorSettings
	microvm microvmSettings
	remote  remoteSettings
	memory  memoryBudget
	trace   engine.Trace
	pool    engine.Pool
	images  imageSettings
	gateway gatewaySettings
	secrets secretSettings
	serves  bool     // many requests: only then is anything kept ready
	listen  []string // addresses that serve listens on

	servedBy string // what results say about who served them; empty: local

	file  string         // for messages; empty when the built-in defaults are used
	lines map[string]int // key → line of file
}

// processSettings are drivers.process. Zero fields are the driver's own defaults.
type processSettings struct {
	accept []string
	cgroup string
	init   string
	uids   uidPool
}

type uidPool struct{ start, count uint32 }

// memoryBudget is a percentage or a size, or zero for the engine's own default.
type memoryBudget struct {
	percent int
	size    glovebox.Size
}

const (
	systemConfig = "/etc/glovebox/glovebox.yaml"
	configName   = "glovebox/glovebox.yaml"
	maxConfig    = 256 << 10
)

// settings are what the configuration says, with its defaults filled in.
func (a *app) settings() (settings, error) {
	s, err := a.configuration()
	if err != nil {
		return s, err
	}
	if s.dataDir == "" {
		if s.dataDir = a.defaultData(); s.dataDir == "" {
			return s, glovebox.Errorf(glovebox.CodeUnavailable, "set HOME, or data_dir in glovebox.yaml",
				"there is no place for the data: HOME is not set")
		}
	}
	if s.microvm.emulated {
		s.policy.OnlyNamed = []glovebox.Isolation{glovebox.IsolationMicroVM}
	}
	if _, err := policy.New(s.policy); err != nil {
		return s, s.located(err)
	}
	if err := broker.CheckActions(s.secrets.actions, s.secrets.specs); err != nil { // which may stand below them
		return s, s.located(err)
	}
	if s.policy.Remote != "" && s.remote.url == "" {
		e := glovebox.Errorf(glovebox.CodeInvalid, "add url: unix:/path", "there is no other Glovebox to demand that of")
		e.Op = "drivers.remote.isolation"
		return s, s.located(e)
	}
	return s, nil
}

// configuration finds and reads the configuration: --config, else the system's, else the user's, else nothing. A file that
// is there and cannot be used is an error, never passed over.
func (a *app) configuration() (settings, error) {
	s := settings{lines: map[string]int{}, pool: builtInPool, gateway: gatewaySettings{ready: builtInReady,
		around: a.surroundings()}, secrets: secretSettings{getenv: a.getenv}}
	places, must := []string{systemConfig}, false
	if a.config != "" {
		places, must = []string{a.config}, true
	} else if dir := a.userFolder("XDG_CONFIG_HOME", ".config"); dir != "" {
		places = append(places, filepath.Join(dir, configName))
	}
	for _, place := range places {
		text, err := readConfig(place)
		if errors.Is(err, fs.ErrNotExist) && !must {
			continue
		}
		if errors.Is(err, fs.ErrNotExist) {
			return s, glovebox.Errorf(glovebox.CodeInvalid, "name a file that exists, or leave --config out",
				"there is no configuration %q", short(place))
		}
		if err != nil {
			return s, err
		}
		s.file = place
		return s, s.parse(text)
	}
	return s, nil
}

// readConfig reads a configuration file. Whoever may write it decides what is fenced, so that only one of root's or of this
// user's own is read, and only when nobody else may write it. What is judged is the open file, wherever a link led to it.
func readConfig(name string) ([]byte, error) {
	// A fifo must not make the command hang before it could say that it is none of a file.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, fileError(name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fileError(name, err)
	case !info.Mode().IsRegular():
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "name a regular file", "the configuration %q is not a file", short(name))
	case info.Size() > maxConfig:
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "make it smaller", "the configuration %q has more than %d bytes",
			short(name), maxConfig)
	}
	if err := checkWriters(name, info.Mode(), info.Sys().(*syscall.Stat_t).Uid, os.Geteuid()); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxConfig))
	if err != nil {
		return nil, fileError(name, err)
	}
	return b, nil
}

// checkWriters refuses a configuration that others than root and the user euid may change: it is owned by uid.
func checkWriters(name string, mode fs.FileMode, uid uint32, euid int) error {
	switch {
	case uid != 0 && int64(uid) != int64(euid):
		return glovebox.Errorf(glovebox.CodeInvalid,
			fmt.Sprintf("look through it, then: chown %d %q", euid, short(name)),
			"the configuration %q belongs to user %d, and only root's and your own are read", short(name), uid)
	case mode.Perm()&0o022 != 0:
		return glovebox.Errorf(glovebox.CodeInvalid, fmt.Sprintf("look through it, then: chmod go-w %q", short(name)),
			"the configuration %q may be changed by others: its mode is %04o", short(name), mode.Perm())
	}
	return nil
}

// userFolder is a folder of the user's as XDG has it, or empty. A relative one in the environment is passed over, as XDG
// demands.
func (a *app) userFolder(variable, below string) string {
	if dir := a.getenv(variable); filepath.IsAbs(dir) {
		return dir
	}
	if home := a.getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, below)
	}
	return ""
}

// defaultData is the data_dir without one configured, or empty.
func (a *app) defaultData() string {
	if a.uid == 0 {
		return "/var/lib/glovebox"
	}
	if dir := a.userFolder("XDG_DATA_HOME", ".local/share"); dir != "" {
		return filepath.Join(dir, "glovebox")
	}
	return ""
}

// located adds file and line to an error whose Op is a key of the configuration.
func (s *settings) located(err error) error {
	var e *glovebox.Error
	if !errors.As(err, &e) || s.file == "" {
		return err
	}
	at := *e
	at.Public = fmt.Sprintf("%s: %s: %s", s.place(e.Op), e.Op, e.Public)
	return &at
}

// place is file:line of a key, or of the nearest key above it that the file has.
func (s *settings) place(key string) string {
	for key != "" {
		if n, ok := s.lines[key]; ok {
			return fmt.Sprintf("%s:%d", s.file, n)
		}
		i := strings.LastIndexByte(key, '.')
		key = key[:max(i, 0)]
	}
	return s.file
}

// schema is what a glovebox.yaml may hold: what each key sets, or that it is known and not built.
func (s *settings) schema() *key {
	trust := &key{keys: map[string]*key{}}
	for _, t := range []glovebox.Trust{
		glovebox.TrustTrusted, glovebox.TrustModel, glovebox.TrustInfluenced, glovebox.TrustHostile,
	} {
		trust.keys[string(t)] = scalar(func(v string) error {
			if s.policy.TrustRungs == nil {
				s.policy.TrustRungs = map[glovebox.Trust]glovebox.Isolation{}
			}
			s.policy.TrustRungs[t] = glovebox.Isolation(v)
			return nil
		})
	}
	p := &s.process
	return &key{keys: map[string]*key{
		"data_dir": scalar(absolute(&s.dataDir)),
		"policy": {keys: map[string]*key{
			"trust": trust,
			"limits": {keys: map[string]*key{
				"default": limitKeys(&s.policy.Limits.Default),
				"ceiling": limitKeys(&s.policy.Limits.Ceiling),
			}},
			"input_roots": {item: func(v string) error { s.policy.InputRoots = append(s.policy.InputRoots, v); return nil }},
			"egress": {keys: map[string]*key{
				"allow_private": words(&s.policy.Egress.AllowPrivate),
				"rules":         {each: func() *element { return s.egressRule(&s.policy.Egress.Rules) }},
			}},
		}},
		"drivers": {keys: map[string]*key{
			"process": {keys: map[string]*key{
				"accept":   {item: func(v string) error { p.accept = append(p.accept, v); return nil }},
				"cgroup":   scalar(absolute(&p.cgroup)),
				"uid_pool": scalar(p.uids.set),
				"init":     scalar(absolute(&p.init)),
			}},
			"gvisor": s.gvisor.keys(), "microvm": s.microvm.keys(), "remote": s.remote.keys(&s.policy.Remote),
		}},
		"listen": {item: func(v string) error {
			_, err := listenOn(v)
			s.listen = append(s.listen, v)
			return err
		}},
		"tenants": {each: s.tenant}, "secrets": {named: s.secret}, "actions": {named: s.action},
		"images": s.imageKeys(), "pool": poolKeys(&s.pool),
		"memory_budget": scalar(s.memory.set), "trace": s.traceKeys(), "gateway": s.gateway.keys(),
	}}
}

func (s *settings) traceKeys() *key {
	t := &s.trace
	return &key{keys: map[string]*key{
		"key": scalar(absolute(&t.Key)),
		"heads": {keys: map[string]*key{
			"file": scalar(absolute(&t.HeadsFile)), "syslog": scalar(absolute(&t.HeadsSyslog)),
			"webhook": scalar(func(v string) error {
				// Its value is in no message: it may hold a token.
				if _, err := url.Parse(v); err != nil || !strings.HasPrefix(v, "http") {
					return glovebox.Errorf(glovebox.CodeInvalid, "write an address such as https://log.example.com/heads",
						"the value is no address of a server")
				}
				t.HeadsWebhook = v
				return nil
			}),
		}},
		"retention": scalar(func(v string) (err error) {
			t.Retention, err = parseSpan(v)
			return notZero(t.Retention != 0, err)
		}),
		"data_limit": scalar(func(v string) (err error) {
			t.DataLimit, err = parseSize(v)
			return notZero(t.DataLimit != 0, err)
		}),
		"otlp": missingKey,
	}}
}

func limitKeys(l *glovebox.Limits) *key {
	span := func(d *time.Duration) *key {
		return scalar(func(v string) (err error) { *d, err = parseDuration(v); return notZero(*d != 0, err) })
	}
	size := func(d *glovebox.Size) *key {
		return scalar(func(v string) (err error) { *d, err = parseSize(v); return notZero(*d != 0, err) })
	}
	count := func(d *int64) *key {
		return scalar(func(v string) (err error) { *d, err = parseCount(v); return notZero(*d != 0, err) })
	}
	return &key{keys: map[string]*key{
		"wall": span(&l.Wall), "cpu": span(&l.CPU), "memory": size(&l.Memory), "disk": size(&l.Disk),
		"files": count(&l.Files), "open_files": count(&l.OpenFiles), "processes": count(&l.Processes),
		"egress": size(&l.Egress), "output": size(&l.Output), "view": size(&l.View),
		"cpus": scalar(func(v string) (err error) { l.CPUs, err = parseFraction(v); return notZero(l.CPUs != 0, err) }),
	}}
}

// notZero refuses a limit of nothing, which would read as "endless" and mean "the built-in value".
func notZero(some bool, err error) error {
	if err == nil && !some {
		return glovebox.Errorf(glovebox.CodeInvalid, "leave the key out for the built-in value", "a limit of 0 is no limit")
	}
	return err
}

// absolute reads a path that means the same wherever the command is typed.
func absolute(to *string) func(string) error {
	return func(v string) error {
		if !filepath.IsAbs(v) || filepath.Clean(v) != v || strings.ContainsRune(v, 0) {
			return glovebox.Errorf(glovebox.CodeInvalid, "write an absolute path, without ~, variables, . or ..",
				"%q is not a plain absolute path", short(v))
		}
		*to = v
		return nil
	}
}

// set reads 75% or 8GiB.
func (m *memoryBudget) set(v string) (err error) {
	number, percent := strings.CutSuffix(v, "%")
	if !percent {
		m.size, err = parseSize(v)
		return notZero(m.size != 0, err)
	}
	n, err := parseCount(strings.TrimSpace(number))
	if err != nil || n < 1 || n > 100 {
		return glovebox.Errorf(glovebox.CodeInvalid, "write 1% to 100%, or a size such as 8GiB",
			"%q is no share of a machine's memory", short(v))
	}
	m.percent = int(n)
	return nil
}

// set reads START:COUNT.
func (u *uidPool) set(v string) error {
	start, count, ok := strings.Cut(v, ":")
	a, errA := parseCount(start)
	n, errN := parseCount(count)
	const last = 1<<32 - 2 // the last id is the kernel's "no id"
	if !ok || errA != nil || errN != nil || a < 1 || n < 1 || n > last || a > last || a+n-1 > last {
		return glovebox.Errorf(glovebox.CodeInvalid, "write START:COUNT, such as \"1879048192:65536\"",
			"%q is no range of user ids", short(v))
	}
	u.start, u.count = uint32(a), uint32(n)
	return nil
}
