package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"glovebox"
	"glovebox/client"
	"glovebox/policy"
)

// service opens what serves the verbs: the server that was named, or a local engine.
func (a *app) service() (glovebox.Service, error) {
	if named, err := a.namedServer(); named != nil || err != nil {
		return named, err
	}
	s, err := a.settings()
	if err != nil {
		return nil, err
	}
	return a.open(s, logger(a.errs))
}

// runService is service, which also finds a server of this machine and this user that has the same configuration.
func (a *app) runService() (glovebox.Service, error) {
	if named, err := a.namedServer(); named != nil || err != nil {
		return named, err
	}
	s, err := a.settings()
	if err != nil {
		return nil, err
	}
	local := func() (glovebox.Service, error) { return a.open(s, logger(a.errs)) }
	socket := a.nearbySocket()
	if a.local || socket == "" {
		return local()
	}
	digest := s.digest()
	if digest == "" {
		return local()
	}
	rules, err := policy.New(s.policy)
	if err != nil {
		return nil, s.located(err)
	}
	return &nearby{client.New(client.Config{Socket: socket, UID: a.uid, Digest: digest}), local, rules.Opens}, nil
}

// nearby is a server that was found and not named: what it cannot be asked is done by an engine of this process. It serves
// one run, and what that left is read from where it was run.
type nearby struct {
	glovebox.Service
	local func() (glovebox.Service, error)
	opens func(tenant string, allow []string) bool // what a server opens for anybody; the rest is for what is typed here
}

// Run implements glovebox.Runs.
func (n *nearby) Run(ctx context.Context, who glovebox.Principal, req glovebox.Request, sink glovebox.Sink) (
	*glovebox.Result, error) {
	if n.opens(who.Tenant, req.Allow) {
		res, err := n.Service.Run(ctx, who, req, sink)
		if !errors.Is(err, client.ErrNotSent) {
			return res, err
		}
	}
	local, err := n.local()
	if err != nil {
		return nil, err
	}
	n.Service.Close() // which only lets connections go
	n.Service = local
	return local.Run(ctx, who, req, sink)
}

// namedServer is the server of --server or GLOVEBOX_SERVER, or nil. One that does not answer is an error at its first use.
func (a *app) namedServer() (glovebox.Service, error) {
	name, from := a.server, "--server"
	if name != "" && a.local {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "leave one of them out", "--server and --local contradict each other")
	}
	if name == "" && !a.local {
		name, from = a.getenv("GLOVEBOX_SERVER"), "GLOVEBOX_SERVER"
	}
	if name == "" {
		return nil, nil
	}
	scheme, _, _ := strings.Cut(name, ":")
	if scheme == "http" || scheme == "https" {
		return nil, unbuilt(from+" with "+scheme, "name a socket of this machine: unix:/path; or say --local")
	}
	socket, err := unixAddress(name)
	if err != nil {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "say unix:/path, or --local", "%s %q is no address of a server", from,
			short(name))
	}
	if a.config != "" { // the server has its own, but one that is named and wrong is a mistake
		if _, err := a.configuration(); err != nil {
			return nil, err
		}
	}
	return client.New(client.Config{Socket: socket, UID: a.uid}), nil
}

// ownServer refuses --server for a verb that is about this machine itself.
func (a *app) ownServer(verb string) error {
	if a.server == "" {
		return nil
	}
	return glovebox.Errorf(glovebox.CodeInvalid, "leave --server out", "%s asks no server: it is about this machine", verb)
}

// unixAddress reads unix:/path.
func unixAddress(address string) (string, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok || !filepath.IsAbs(path) || filepath.Clean(path) != path || strings.ContainsRune(path, 0) {
		return "", glovebox.Errorf(glovebox.CodeInvalid, "say unix:/path, a plain absolute path", "%q is no address of a socket",
			short(address))
	}
	const most = 107 // the kernel's
	if len(path) > most {
		return "", glovebox.Errorf(glovebox.CodeInvalid, "name one that is shorter", "the path of a socket has at most %d bytes",
			most)
	}
	return path, nil
}

// defaultSocket is where a server listens and is looked for when nothing is said, or empty.
func (a *app) defaultSocket() string {
	const below = "glovebox/sock"
	if a.uid == 0 {
		return filepath.Join(a.runtime, below)
	}
	if dir := a.getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, below)
	}
	return ""
}

// nearbySocket is the default socket if there is one in a folder of this user's own, else empty. Where there is none that
// costs one look.
func (a *app) nearbySocket() string {
	socket := a.defaultSocket()
	if socket == "" {
		return ""
	}
	info, err := os.Lstat(socket)
	if err != nil || info.Mode().Type() != fs.ModeSocket || ownFolder(filepath.Dir(socket), a.uid) != nil {
		return ""
	}
	return socket
}

// ownFolder fails unless dir is a folder that nobody but uid and root can enter.
func ownFolder(dir string, uid int) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	switch owner := info.Sys().(*syscall.Stat_t).Uid; {
	case !info.IsDir():
		return glovebox.Errorf(glovebox.CodeConflict, "name a socket in a folder of its own", "%q is no folder", short(dir))
	case int64(owner) != int64(uid):
		return glovebox.Errorf(glovebox.CodeDenied, "name a socket in a folder of your own", "the folder %q is user %d's",
			short(dir), owner)
	case info.Mode().Perm()&0o077 != 0:
		return glovebox.Errorf(glovebox.CodeDenied,
			fmt.Sprintf("name a socket in a folder of its own, or: chmod 700 %q", short(dir)),
			"others may enter the folder %q: its mode is %04o", short(dir), info.Mode().Perm())
	}
	return nil
}

// digest tells whether two processes would run a request alike: it is made of the program's version, all that the
// configuration says, and the files that a path means. It is empty where that cannot be told.
func (s settings) digest() string {
	s.file, s.lines, s.serves, s.servedBy = "", nil, false, "" // which change nothing of what a run is
	s.gateway.around, s.gateway.ready = surroundings{}, 0
	mounts, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return ""
	}
	root, err := os.Stat("/")
	if err != nil {
		return ""
	}
	at := root.Sys().(*syscall.Stat_t)
	program := ""
	if s.process.init == "" { // it is beside the program
		if program, err = os.Executable(); err != nil {
			return ""
		}
		program = filepath.Dir(program)
	}
	secrets := s.secrets.said()
	s.secrets = secretSettings{}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %d %d %q %q %#v", version, mounts, at.Dev, at.Ino, program, secrets, s))
	return hex.EncodeToString(sum[:])
}
