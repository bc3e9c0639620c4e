package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// roleEnv makes the test binary a process beside a test: "role folder".
const roleEnv = "GLOVEBOX_STORE_ROLE"

var bg = context.Background() // for processes that are no test

func TestMain(m *testing.M) {
	role, dir, _ := strings.Cut(os.Getenv(roleEnv), " ")
	if role == "" {
		os.Exit(m.Run())
	}
	if err := roles[role](dir); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ok")
	os.Exit(0)
}

var roles = map[string]func(dir string) error{
	"crash": crash, "full": full, "full_at_open": fullAtOpen, "read_only": readOnly,
}

// play runs a role as a process of its own and returns what it printed and how it ended. Its mounts are its own when inside
// is set.
func play(t *testing.T, role, dir string, inside bool) (string, error) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"="+role+" "+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if inside {
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("GLOVEBOX_TEST_ROOT") == "1" {
		t.Fatal("promised but missing: root")
	}
	t.Skip("needs root")
}

func TestOnMachinesThatLack(t *testing.T) {
	needRoot(t)
	for _, role := range []string{"full", "full at open", "read only"} {
		t.Run(role, func(t *testing.T) {
			if out, err := play(t, strings.ReplaceAll(role, " ", "_"), t.TempDir(), true); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func faultIs(err error, f Fault) error {
	if errors.Is(err, &Error{Fault: f}) {
		return nil
	}
	return fmt.Errorf("got %v, want the fault %q", err, f)
}

// full fills the disk under a store: nothing acknowledged is lost, what fails says why, and it works again with room.
func full(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		return err
	}
	s, err := Open(Config{Dir: filepath.Join(dir, "data")})
	if err != nil {
		return err
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); err != nil {
		return err
	}
	ctx, acknowledged := bg, 0
	for ; ; acknowledged++ {
		if err = s.Update(ctx, addRecord("r", "note")); err != nil || acknowledged > 100_000 {
			break
		}
	}
	if err := faultIs(err, FaultFull); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	if _, _, err := s.Put(bytes.NewReader(make([]byte, 4<<20))); faultIs(err, FaultFull) != nil {
		return fmt.Errorf("put: %w", err)
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "data", newFolder)); err != nil || len(entries) > 0 {
		return fmt.Errorf("half-written: %v, %w", entries, err)
	}
	if err := os.Remove(ballast); err != nil {
		return err
	}
	if err := s.Update(ctx, addRecord("r", "note")); err != nil {
		return fmt.Errorf("with room again: %w", err)
	}
	if err := s.Close(); err != nil {
		return err
	}
	if s, err = Open(Config{Dir: filepath.Join(dir, "data")}); err != nil {
		return err
	}
	var n int
	err = s.View(ctx, func(tx *Tx) error { return tx.QueryRow(ctx, "SELECT count(*) FROM records").Scan(&n) })
	if err == nil && n != acknowledged+1 {
		err = fmt.Errorf("%d records are kept, %d were acknowledged", n, acknowledged+1)
	}
	return errors.Join(err, s.Close())
}

func fullAtOpen(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=32k"); err != nil {
		return err
	}
	_, err := Open(Config{Dir: filepath.Join(dir, "data")})
	if err := faultIs(err, FaultFull); err != nil {
		return err
	}
	// Nothing half-made may pass for a database later.
	if err := unix.Mount("tmpfs", dir, "", unix.MS_REMOUNT, "size=4m"); err != nil {
		return err
	}
	s, err := Open(Config{Dir: filepath.Join(dir, "data")})
	if err != nil {
		return err
	}
	return s.Close()
}

func readOnly(dir string) error {
	data := filepath.Join(dir, "data")
	s, err := Open(Config{Dir: data})
	if err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return err
	}
	for _, d := range []string{data, filepath.Join(dir, "new")} {
		_, err := Open(Config{Dir: d})
		if err := faultIs(err, FaultReadOnly); err != nil {
			return fmt.Errorf("%s: %w", d, err)
		}
	}
	return nil
}

func TestForeignOwner(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	if err := mustOpen(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, databaseName)
	if err := os.Chown(path, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	wantFault(t, dir, FaultForeign)
	if err := errors.Join(os.Chown(path, 0, 0), os.Chown(dir, 12345, 12345)); err != nil {
		t.Fatal(err)
	}
	wantFault(t, dir, FaultForeign)
}

// crash leaves a log that no process brought into the database.
func crash(dir string) error {
	s, err := Open(Config{Dir: dir})
	if err != nil {
		return err
	}
	for i := range 20 {
		if err := s.Update(bg, addRecord(fmt.Sprint("r", i), "note")); err != nil {
			return err
		}
	}
	return unix.Kill(os.Getpid(), unix.SIGKILL)
}

func TestDamageBesideALeftLog(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if out, err := play(t, "crash", dir, false); err == nil {
		t.Fatalf("it did not crash: %s", out)
	}
	path := filepath.Join(dir, databaseName)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(path + "-wal")
	if err != nil || len(log) == 0 {
		t.Fatalf("the crash left no log: %d bytes, %v", len(log), err)
	}
	smash(t, path, 4096, noise(len(good)-4096))
	bad, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	wantFault(t, dir, FaultDamaged)
	for name, want := range map[string][]byte{path: bad, path + "-wal": log} {
		if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s was changed: %d bytes, %v", filepath.Base(name), len(got), err)
		}
	}
	rewrite(t, path, good)
	s = mustOpen(t, dir)
	if !s.dirty {
		t.Error("a crash was not noticed")
	}
	if got := len(kinds(t, s, "r19")); got != 1 {
		t.Errorf("the last record before the crash is kept %d times", got)
	}
	if err := s.Tend(t.Context()); err != nil {
		t.Error(err)
	}
}
