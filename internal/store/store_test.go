package store

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func mustOpen(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func kinds(t testing.TB, s *Store, run string) []string {
	t.Helper()
	var got []string
	err := s.View(t.Context(), func(tx *Tx) error {
		rows, err := tx.Query(t.Context(), "SELECT kind FROM records WHERE run = ? ORDER BY seq", run)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var kind string
			if err := rows.Scan(&kind); err != nil {
				return err
			}
			got = append(got, kind)
		}
		return rows.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestOpenMakesAPrivateFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b?c#d%20")
	s := mustOpen(t, dir)
	if err := s.Update(t.Context(), addRecord("r", "note")); err != nil {
		t.Fatal(err)
	}
	modes := map[string]os.FileMode{"": 0o700, databaseName: 0o600, databaseName + "-wal": 0o600, blobFolder: 0o700}
	for name, want := range modes {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		} else if got := info.Mode().Perm(); got != want {
			t.Errorf("%q has mode %v, want %v", name, got, want)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(t.Context(), addRecord("r", "late")); !errors.Is(err, errClosed) {
		t.Errorf("an update of a closed store: %v", err)
	}
	again := mustOpen(t, dir)
	if d := cmp.Diff([]string{"note"}, kinds(t, again, "r")); d != "" {
		t.Errorf("after opening again (-want +got):\n%s", d)
	}
	if again.dirty {
		t.Error("a store that was closed in order counts as left open")
	}
}

// smash overwrites part of a file.
func smash(t *testing.T, path string, at int64, with []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(with, at); err != nil {
		t.Fatal(err)
	}
}

func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + 0x5a)
	}
	return b
}

func TestOpenRefusesAndLeavesAsItWas(t *testing.T) {
	script := func(text string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.Exec(text); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, path string)
		fault  Fault
	}{
		{"header", func(t *testing.T, p string) { smash(t, p, 0, noise(16)) }, FaultDamaged},
		{"first page", func(t *testing.T, p string) { smash(t, p, 100, noise(3996)) }, FaultDamaged},
		{"all pages after the first", func(t *testing.T, p string) { smash(t, p, 4096, noise(8*4096)) }, FaultDamaged},
		{"text", func(t *testing.T, p string) { rewrite(t, p, []byte(strings.Repeat("not a database\n", 900))) }, FaultDamaged},
		{"emptied", func(t *testing.T, p string) { rewrite(t, p, nil) }, FaultDamaged},
		{"cut in the header", func(t *testing.T, p string) { rewrite(t, p, []byte("SQLite format 3\x00")) }, FaultDamaged},
		{"cut after the first page", func(t *testing.T, p string) {
			if err := os.Truncate(p, 4096); err != nil {
				t.Fatal(err)
			}
		}, FaultDamaged},
		{"another program's", script("PRAGMA application_id=7"), FaultForeign},
		{"a later version's", script("PRAGMA user_version=99"), FaultNewer},
		{"a later version's with other tables", script("PRAGMA user_version=99; DROP TABLE artifacts"), FaultNewer},
		{"no version", script("PRAGMA user_version=0"), FaultNewer},
		{"writable by all", func(t *testing.T, p string) {
			if err := os.Chmod(p, 0o602); err != nil {
				t.Fatal(err)
			}
		}, FaultForeign},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			s := mustOpen(t, dir)
			for i := range 50 {
				if err := s.Update(t.Context(), addRecord(fmt.Sprint("r", i), "note")); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, databaseName)
			c.damage(t, path)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			wantFault(t, dir, c.fault)
			after, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if string(before) != string(after) {
				t.Error("the refused database was changed")
			}
		})
	}
}

// wantFault opens dir, which must fail with the fault and a fix that names the folder.
func wantFault(t *testing.T, dir string, fault Fault) {
	t.Helper()
	s, err := Open(Config{Dir: dir})
	if err == nil {
		s.Close()
	}
	var e *Error
	if !errors.As(err, &e) || e.Fault != fault {
		t.Fatalf("open: %v, want the fault %q", err, fault)
	}
	if e.Fix == "" || e.Err == nil {
		t.Errorf("the fault %q has fix %q and cause %v", e.Fault, e.Fix, e.Err)
	}
	if !errors.Is(err, &Error{Fault: fault}) || errors.Is(err, &Error{Fault: "other"}) {
		t.Errorf("%v is not told by its fault", err)
	}
}

func rewrite(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefusesFolders(t *testing.T) {
	for _, c := range []struct {
		name  string
		make  func(t *testing.T, dir string)
		fault Fault
	}{
		{"a file", func(t *testing.T, dir string) { rewrite(t, dir, nil) }, FaultNoFolder},
		{"writable by a group", func(t *testing.T, dir string) {
			if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o770)); err != nil {
				t.Fatal(err)
			}
		}, FaultForeign},
		{"a log without its database", func(t *testing.T, dir string) {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			rewrite(t, filepath.Join(dir, databaseName+"-wal"), noise(4096))
		}, FaultDamaged},
		{"a link in place of the database", func(t *testing.T, dir string) {
			if err := errors.Join(os.Mkdir(dir, 0o700), os.Symlink("/dev/null", filepath.Join(dir, databaseName))); err != nil {
				t.Fatal(err)
			}
		}, FaultNoFolder},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			c.make(t, dir)
			wantFault(t, dir, c.fault)
		})
	}
	wantFault(t, "/proc/glovebox", FaultNoFolder) // where no folder can be made
	if _, err := Open(Config{}); err == nil {
		t.Error("no folder was taken for one")
	}
}

func TestTendReadsAllAfterACrash(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	for i := range 3000 { // enough for a page far from the roots
		if err := s.Update(t.Context(), addRecord(fmt.Sprint("r", i), "note")); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, databaseName)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	smash(t, path, info.Size()/4096/2*4096, noise(4096))
	s = mustOpen(t, dir)
	if err := s.Tend(t.Context()); err != nil {
		t.Errorf("a store that was closed in order is read at length: %v", err)
	}
	s.dirty = true
	if err := s.Tend(t.Context()); !errors.Is(err, &Error{Fault: FaultDamaged}) {
		t.Errorf("tend: %v, want damaged", err)
	}
}

func TestMigrate(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	steps, err := schema()
	if err != nil {
		t.Fatal(err)
	}
	broken := append(steps[:len(steps):len(steps)], "CREATE TABLE extra (x); CREATE TABLE records (x);")
	if err := migrate(t.Context(), s.conn, broken); err == nil {
		t.Fatal("a step that fails was taken for done")
	}
	var version, tables int
	state := func() {
		t.Helper()
		if err := s.conn.QueryRowContext(t.Context(), "PRAGMA user_version").Scan(&version); err != nil {
			t.Fatal(err)
		}
		err := s.conn.QueryRowContext(t.Context(), "SELECT count(*) FROM sqlite_master WHERE name = 'extra'").Scan(&tables)
		if err != nil {
			t.Fatal(err)
		}
	}
	if state(); version != len(steps) || tables != 0 {
		t.Errorf("after a step that failed: version %d, %d new tables", version, tables)
	}
	longer := append(steps[:len(steps):len(steps)], "CREATE TABLE extra (x);")
	for range 2 {
		if err := migrate(t.Context(), s.conn, longer); err != nil {
			t.Fatal(err)
		}
		if state(); version != len(longer) || tables != 1 {
			t.Errorf("after a step: version %d, %d new tables", version, tables)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wantFault(t, dir, FaultNewer)
}

func TestRecordsStay(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	if err := s.Update(t.Context(), addRecord("r", "run.start")); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"change":                 "UPDATE records SET skeleton = x'00'",
		"remove":                 "DELETE FROM records",
		"a second start":         "INSERT INTO records VALUES (NULL, 'r', 'run.start', 1, x'', zeroblob(32), zeroblob(68))",
		"an end without a start": "INSERT INTO records VALUES (NULL, 'other', 'run.end', 1, x'', zeroblob(32), zeroblob(68))",
		"a short hash":           "INSERT INTO records VALUES (NULL, 'q', 'run.start', 1, x'', zeroblob(31), zeroblob(68))",
	} {
		err := s.Update(t.Context(), func(ctx context.Context, tx *Tx) error { _, err := tx.Exec(ctx, text); return err })
		if err == nil {
			t.Errorf("%s: the database allowed it", name)
		}
	}
	if err := s.View(t.Context(), func(tx *Tx) error { return addRecord("r", "note")(t.Context(), tx) }); err == nil {
		t.Error("a view wrote")
	}
	if d := cmp.Diff([]string{"run.start"}, kinds(t, s, "r")); d != "" {
		t.Errorf("records (-want +got):\n%s", d)
	}
}

func FuzzOpenDamaged(f *testing.F) {
	dir := f.TempDir()
	s, err := Open(Config{Dir: dir})
	if err != nil {
		f.Fatal(err)
	}
	if err := errors.Join(s.Update(f.Context(), addRecord("r", "note")), s.Close()); err != nil {
		f.Fatal(err)
	}
	good, err := os.ReadFile(filepath.Join(dir, databaseName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(0), []byte("SQLite format 4"))
	f.Add(uint32(100), []byte{0xff, 0xff, 0xff, 0xff})
	f.Add(uint32(4096), []byte{0x0d, 0, 0, 0xff})
	f.Add(uint32(18), binary.BigEndian.AppendUint16(nil, 0x0202))
	f.Fuzz(func(t *testing.T, at uint32, with []byte) {
		bad := append([]byte(nil), good...)
		copy(bad[int(at)%len(bad):], with)
		dir := t.TempDir()
		rewrite(t, filepath.Join(dir, databaseName), bad)
		s, err := Open(Config{Dir: dir})
		if err != nil {
			return
		}
		_ = s.Update(t.Context(), addRecord("r", "again"))
		_ = s.Close()
	})
}

// TestOlderDatabase: a database of the first version is brought up to date and nothing of it is lost.
func TestOlderDatabase(t *testing.T) {
	dir := t.TempDir()
	steps, err := schema()
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", filepath.Join(dir, databaseName))
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.Exec(fmt.Sprintf("PRAGMA journal_mode=WAL; PRAGMA application_id=%d; %s; PRAGMA user_version=1;", applicationID, steps[0]) +
		`INSERT INTO records (run, kind, time_ns, body, sha256) VALUES ('r', 'run.start', 1, x'7b7d', zeroblob(32)), ('r', 'run.end', 2, x'7b7d', zeroblob(32));
		INSERT INTO runs (id, tenant, state, started_ns, start_seq, end_seq) VALUES ('r', 'local', 'ended', 1, 1, 2)`)
	if err := errors.Join(err, db.Close(), os.Chmod(filepath.Join(dir, databaseName), 0o600)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 { // at once, as processes do
		wg.Go(func() {
			s, err := Open(Config{Dir: dir})
			if err == nil {
				err = s.Close()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s := mustOpen(t, dir)
	var found, waiting, version, erased, size int
	err = s.View(t.Context(), func(tx *Tx) error {
		return tx.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM found WHERE run = 'r' AND length(body) = 2), found, size,
			(SELECT erased_ns FROM runs), (SELECT user_version FROM pragma_user_version) FROM log`).
			Scan(&found, &waiting, &size, &erased, &version)
	})
	if err != nil || found != 2 || waiting != 2 || size != 0 || erased != 0 || version != len(steps) {
		t.Errorf("%d records of %d are found, size %d, version %d; %v", found, waiting, size, version, err)
	}
}
