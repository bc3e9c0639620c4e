package store

import (
	"bytes"
	"context"
	"database/sql"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix" // effective access checks and syncs by descriptor
	"modernc.org/sqlite"
)

// prepareFolder makes dir when it is missing and refuses one that is not this user's alone.
func prepareFolder(dir string) error {
	if err := makeFolder(dir); err != nil {
		return err
	}
	if err := checkFolder(dir); err != nil {
		return err
	}
	for _, name := range []string{blobFolder, newFolder} {
		if err := makeFolder(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// makeFolder makes a folder and those above it. Where that cannot be, for whatever reason, no data_dir can be.
func makeFolder(dir string) error {
	err := os.MkdirAll(dir, 0o700)
	if err != nil && faultOf(err) == "" {
		return fmt.Errorf("%w: %w", errUnusable, err)
	}
	return err
}

func checkFolder(dir string) error {
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if errors.Is(err, syscall.ENOTDIR) {
		return errFile
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := checkOwner(f); err != nil {
		return err
	}
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return &fs.PathError{Op: "write", Path: dir, Err: err}
	}
	return nil
}

// checkOwner refuses what others own or may write to: whoever can write here can rewrite the record.
func checkOwner(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) != os.Geteuid() {
		return errOwner
	}
	if info.Mode().Perm()&0o022 != 0 {
		return errWritable
	}
	return nil
}

// checkHeader looks at the first bytes of the database before SQLite does, which would take an empty file for a new one.
func checkHeader(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := checkOwner(f); err != nil {
		return err
	}
	var header [100]byte
	if _, err := io.ReadFull(f, header[:]); err != nil {
		return fmt.Errorf("%w: its header: %w", errDamaged, err)
	}
	if !bytes.HasPrefix(header[:], []byte("SQLite format 3\x00")) {
		return fmt.Errorf("%w: its header is not a database's", errDamaged)
	}
	if binary.BigEndian.Uint32(header[68:]) != applicationID {
		return errStrange
	}
	return nil
}

//go:embed schema/*.sql
var schemaFiles embed.FS

// schema lists the steps from an empty database to the present one; the version of a database is how many it has had.
func schema() ([]string, error) {
	files, err := schemaFiles.ReadDir("schema")
	if err != nil {
		return nil, err
	}
	steps := make([]string, len(files))
	for i, file := range files {
		text, err := schemaFiles.ReadFile("schema/" + file.Name())
		if err != nil {
			return nil, err
		}
		steps[i] = string(text)
	}
	return steps, nil
}

// create makes the database when there is none. It is made beside its place and linked there when it is whole and on the
// disk, so that no process, now or after a crash, sees a part of it; of several that try at once the first wins.
func create(path string) error {
	_, err := os.Lstat(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err = createNew(path); err == nil {
		return nil
	}
	// Another process may have been the first, and may have swept away what was left of this attempt.
	if _, absent := os.Lstat(path); absent != nil {
		return err
	}
	return SyncFolder(filepath.Dir(path))
}

func createNew(path string) error {
	for _, left := range []string{"-wal", "-journal"} {
		if info, err := os.Lstat(path + left); err == nil && info.Size() > 0 {
			return fmt.Errorf("%w: it is missing, but %s is there", errDamaged, filepath.Base(path+left))
		}
	}
	f, err := os.CreateTemp(filepath.Join(filepath.Dir(path), newFolder), "database-") // mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // once linked, it stays under its own name
	defer f.Close()
	if err := fill(f.Name()); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return SyncFolder(filepath.Dir(path))
}

// fill turns the empty file into the newest database. It need not last yet: create syncs it once, at the end.
func fill(path string) error {
	steps, err := schema()
	if err != nil {
		return err
	}
	connector, err := sqlite.NewConnector("file:" + (&url.URL{Path: path}).EscapedPath() + "?mode=rw")
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	script := fmt.Sprintf("PRAGMA synchronous=OFF; PRAGMA journal_mode=MEMORY; BEGIN;\nPRAGMA application_id=%d;\n%s\n"+
		"PRAGMA user_version=%d; COMMIT; PRAGMA journal_mode=WAL;", applicationID, strings.Join(steps, "\n"), len(steps))
	_, err = db.Exec(script)
	return errors.Join(err, db.Close())
}

// glance reads the schema and the root of each table, which finds most of a smashed beginning.
func glance(ctx context.Context, db interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}) error {
	var seen int
	return db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM records) + EXISTS (SELECT 1 FROM runs) + "+
		"EXISTS (SELECT 1 FROM outputs) + EXISTS (SELECT 1 FROM artifacts) + EXISTS (SELECT 1 FROM payloads) + "+
		"EXISTS (SELECT 1 FROM hashes) + EXISTS (SELECT 1 FROM log)").Scan(&seen)
}

// migrate brings an older database up to date, once among processes, and refuses a newer one.
func migrate(ctx context.Context, conn *sql.Conn, steps []string) error {
	var version int
	if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if version == len(steps) {
		return nil
	}
	if version > len(steps) || version < 1 {
		return fmt.Errorf("%w: it is version %d, this program knows %d", errNewer, version, len(steps))
	}
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	// Another process may have done it while this one waited.
	err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version)
	if err == nil && version < len(steps) {
		_, err = conn.ExecContext(ctx, strings.Join(steps[version:], "\n")+fmt.Sprintf("\nPRAGMA user_version=%d;", len(steps)))
	}
	if err == nil {
		_, err = conn.ExecContext(ctx, "COMMIT")
	}
	if err != nil {
		_, undo := conn.ExecContext(ctx, "ROLLBACK")
		return errors.Join(fmt.Errorf("bring the database from version %d to %d: %w", version, len(steps), err), undo)
	}
	return nil
}

// SyncFolder brings the names in a folder to the disk.
func SyncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
