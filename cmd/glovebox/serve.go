package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"glovebox"
	"glovebox/httpapi"
	"glovebox/internal/lockfile"
	"glovebox/policy"
)

// drainLimit is how long a server that is told to stop waits for the runs in progress.
const drainLimit = 30 * time.Second

func (a *app) serveCommand() *cobra.Command {
	var listen []string
	drain := durationFlag(drainLimit)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve runs over HTTP on a unix socket, to this user alone",
		Long: "Serve runs over HTTP on a unix socket, to this user alone.\n\n" +
			"The socket is " + "$XDG_RUNTIME_DIR/glovebox/sock, for root /run/glovebox/sock, unless --listen or listen in the\n" +
			"configuration names another. There run and exec find it by themselves if it has their configuration. A signal to\n" +
			"end lets runs in progress end first; a second one, or the end of --drain, cancels them. SIGHUP has it read\n" +
			"policy of its configuration again.",
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return a.serve(listen, time.Duration(drain)) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringArrayVar(&listen, "listen", nil, "listen on `ADDRESS`: unix:/path")
	f.Var(&drain, "drain", "how long runs in progress may go on when it is told to end")
	return cmd
}

// serverEndings are the signals that end a server. SIGHUP has it read its policy again.
var serverEndings = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT}

// serve serves until a signal ends it.
func (a *app) serve(listen []string, drain time.Duration) (err error) {
	if err := a.ownServer("serve"); err != nil {
		return err
	}
	if drain < 0 {
		return glovebox.Errorf(glovebox.CodeInvalid, "leave the sign out", "--drain %v is negative", drain)
	}
	caught, letGo := catch(serverEndings...)
	defer letGo()
	reloads := make(chan os.Signal, 1)
	signal.Notify(reloads, syscall.SIGHUP)
	defer signal.Stop(reloads)
	s, err := a.settings()
	if err != nil {
		return err
	}
	path, err := a.listenAddress(listen, s.listen)
	if err != nil {
		return err
	}
	socket, err := claimSocket(path, a.uid)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, socket.close()) }()
	log := slog.New(slog.NewTextHandler(a.errs, nil))
	if err := sleepLonger(); err != nil {
		log.Warn("let threads sleep longer: the server takes more CPU time", "err", err)
	}
	svc, err := a.serverService(s, path, log)
	if err != nil {
		return err
	}
	defer func() { err = closed(svc, err) }()
	signals := caught()
	// What is wrong with the record is said now, and what a server that died left is put right.
	if _, err := svc.Traces(signals, a.owner(), glovebox.TraceQuery{Limit: 1}); err != nil {
		return err
	}
	door, err := httpapi.New(httpapi.Config{Service: svc, UID: a.uid, Owner: a.owner(), Digest: s.digest(), Version: version,
		Metrics: metricsOf(svc), Log: log})
	if err != nil {
		return glovebox.Internal("make the door", err)
	}
	l, err := socket.listen()
	if err != nil {
		return err
	}
	fmt.Fprintf(a.out, "listening on unix:%s\n", path)
	return a.serveUntil(signals, reloads, door, l, drain, func() { s = a.reload(s, svc, door, log) })
}

// serveUntil serves at l until signals end, and does reload for each of reloads.
func (a *app) serveUntil(signals context.Context, reloads <-chan os.Signal, door *httpapi.Door, l *net.UnixListener,
	drain time.Duration, reload func()) (err error) {
	served := make(chan error, 1)
	go func() { served <- door.Serve(l) }()
	for going := true; going; {
		select {
		case err = <-served:
			err, going = errors.Join(errors.New("the server stopped by itself"), err), false
		case <-signals.Done():
			going = false
		case <-reloads:
			reload()
		}
	}
	stopErr := a.stopServing(door, drain)
	if err != nil || stopErr != nil {
		return glovebox.Internal("serve", errors.Join(err, stopErr))
	}
	return glovebox.Internal("serve", <-served)
}

// reload has the server go by what its configuration says of policy now. What cannot be used, and what would need another
// server, changes nothing, and the operator is told. It returns the settings in force.
func (a *app) reload(now settings, svc glovebox.Service, door *httpapi.Door, log *slog.Logger) settings {
	next, err := a.settings()
	if err == nil {
		same := next
		same.policy = now.policy
		if same.digest() != now.digest() {
			err = glovebox.Errorf(glovebox.CodeConflict, "restart the server", "more than policy has changed in the configuration")
		}
	}
	if err == nil {
		err = svc.(interface{ SetPolicy(policy.Config) error }).SetPolicy(next.policy)
	}
	if err != nil {
		log.Error("read the policy again: the one before stays in force", "err", err, "fix", fixOf(err))
		return now
	}
	door.SetDigest(next.digest())
	log.Info("the policy was read again")
	return next
}

func fixOf(err error) string {
	var known *glovebox.Error
	if errors.As(err, &known) {
		return known.Fix
	}
	return ""
}

// serverService opens the engine of a server. What a server's engine has and that of a command has not is said here.
func (a *app) serverService(s settings, path string, log *slog.Logger) (glovebox.Service, error) {
	s.servedBy, s.serves = "unix:"+path, true
	return a.open(s, log)
}

// stopServing lets runs in progress end, within a bound or until the next signal.
func (a *app) stopServing(door *httpapi.Door, drain time.Duration) error {
	next, stop := signal.NotifyContext(context.Background(), serverEndings...)
	defer stop()
	ctx, done := context.WithTimeout(next, drain)
	defer done()
	if n := door.Live(); n > 0 {
		say(a.errs, fmt.Sprintf("stopping: waiting up to %v for runs in progress (%d); the next signal cancels them", drain, n))
	}
	canceled, err := door.Stop(ctx)
	told := "stopped"
	if canceled > 0 {
		told = fmt.Sprintf("stopped; runs that were cancelled: %d", canceled)
	}
	say(a.errs, told)
	return err
}

// listenAddress is the path of the socket to serve on: that of the flag, of the configuration, or the usual one.
func (a *app) listenAddress(flag, configured []string) (string, error) {
	from := flag
	if len(from) == 0 {
		from = configured
	}
	switch {
	case len(from) > 1:
		return "", unbuilt("listening on several addresses", "name one")
	case len(from) == 1:
		return listenOn(from[0])
	}
	if path := a.defaultSocket(); path != "" {
		return path, nil
	}
	return "", glovebox.Errorf(glovebox.CodeInvalid, "set XDG_RUNTIME_DIR, or say --listen unix:/path",
		"there is no usual place for the socket: XDG_RUNTIME_DIR is not set")
}

// listenOn reads an address to listen on.
func listenOn(address string) (string, error) {
	if _, _, err := net.SplitHostPort(address); err == nil && address[:min(5, len(address))] != "unix:" {
		return "", unbuilt("listening on TCP", "listen on a unix socket: unix:/path")
	}
	return unixAddress(address)
}

// socketClaim is the right to listen on a path: one process at a time has it, whatever lies there.
type socketClaim struct {
	path string
	lock *lockfile.File
}

// claimSocket makes the folder of a socket if need be, and claims the socket: what a dead server left there is removed. The
// caller closes the claim.
func claimSocket(path string, uid int) (*socketClaim, error) {
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "make the folder above it, or name a socket elsewhere",
			"cannot make the folder %q of the socket: %s", short(dir), errno(err))
	}
	if err := ownFolder(dir, uid); err != nil {
		return nil, err
	}
	lock, err := lockfile.Open(dir, filepath.Base(path)+".lock")
	if err != nil {
		return nil, glovebox.Internal("claim the socket", err)
	}
	c := &socketClaim{path, lock}
	free, err := lock.Take(lockfile.Range{Start: 0, Length: 1})
	switch {
	case err != nil:
		err = glovebox.Internal("claim the socket", err)
	case !free:
		err = glovebox.Errorf(glovebox.CodeConflict, "use that one, end it first, or --listen elsewhere",
			"another glovebox serve has unix:%s", path)
	default:
		err = c.clear()
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return c, nil
}

// errno is the system's word for err.
func errno(err error) string {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e.Error()
	}
	return "it failed"
}

// clear removes a socket that nobody answers at.
func (c *socketClaim) clear() error {
	info, err := os.Lstat(c.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fileError(c.path, err)
	case info.Mode().Type() != fs.ModeSocket:
		return glovebox.Errorf(glovebox.CodeConflict, "look at it, then remove it, or --listen elsewhere",
			"%q is there and is no socket", c.path)
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: c.path, Net: "unix"})
	if err == nil {
		conn.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return glovebox.Errorf(glovebox.CodeConflict, "end that program first, or --listen elsewhere",
			"another program listens on unix:%s", c.path)
	}
	if err := os.Remove(c.path); err != nil {
		return fileError(c.path, err)
	}
	return nil
}

// listen begins to listen. The caller closes the listener, which removes the socket.
func (c *socketClaim) listen() (*net.UnixListener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.path, Net: "unix"})
	if err != nil {
		return nil, fileError(c.path, err)
	}
	if err := os.Chmod(c.path, 0o600); err != nil {
		return nil, errors.Join(fileError(c.path, err), l.Close())
	}
	return l, nil
}

func (c *socketClaim) close() error { return c.lock.Close() }
