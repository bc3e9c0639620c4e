// Package store keeps Glovebox's durable state in one folder, the data_dir: an SQLite database and, beside it, blobs named
// by the SHA-256 of what they hold. Any number of processes share a data_dir.
//
// What [Store.Update] and [Store.Put] acknowledged is on the disk and survives the death of the process and of the machine.
// A database that is damaged, foreign or newer than this program is refused and left byte for byte as it was.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"

	"modernc.org/sqlite" // durable records for many processes, in pure Go, so that one static binary is enough
)

// Config says where the state is.
type Config struct {
	// Dir is the data_dir. It is made, mode 0700, when it is missing (its parents too).
	Dir string
}

// Store is an open data_dir. Its methods are safe for concurrent use.
type Store struct {
	dir   string
	dirty bool // the database was not closed by whoever had it last, or somebody has it open
	write *sql.DB
	conn  *sql.Conn // the one writer
	stmts map[string]*sql.Stmt
	read  *sql.DB
	batch batch
	turn  turn

	closing sync.Once
	closed  error
}

const (
	databaseName  = "glovebox.db"
	applicationID = 0x474c5642 // GLVB: tells a Glovebox database from any other
	busyMS        = 10_000     // how long a writer waits for its turn among processes
	readers       = 4
)

// Open opens the data_dir and makes what is missing. A failure that the operator can mend is an *[Error]. The caller closes
// the Store.
func Open(cfg Config) (*Store, error) {
	if cfg.Dir == "" {
		return nil, errors.New("open store: no folder was named")
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if err := prepareFolder(dir); err != nil {
		return nil, diagnose("open data_dir", dir, err)
	}
	// Half the commit time on a journaling file system, with the same durability.
	if _, err := sqlite.Fdatasync(true); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	// A lock of the common kind is lost when anything in the process closes the file, and Open reads the header of a database
	// that another Store may have open. File systems without the better kind leave the common one, which one Store can use.
	if _, err := sqlite.OFDLocking(true); err != nil && !errors.Is(err, sqlite.ErrOFDLockingUnavailable) {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{dir: dir, stmts: map[string]*sql.Stmt{}}
	if err := s.openDatabase(); err != nil {
		return nil, errors.Join(diagnose("open database", dir, err), s.Close())
	}
	return s, nil
}

func (s *Store) openDatabase() error {
	path := filepath.Join(s.dir, databaseName)
	if err := create(path); err != nil {
		return err
	}
	if err := checkHeader(path); err != nil {
		return err
	}
	if wal, err := os.Stat(path + "-wal"); err == nil && wal.Size() > 0 {
		s.dirty = true
	}
	var err error
	if s.turn, err = openTurn(s.dir); err != nil {
		return err
	}
	s.write, err = database(path, "rw", "synchronous(FULL)", "cell_size_check(1)", "journal_size_limit(16777216)",
		"secure_delete(1)") // what retention erases is overwritten
	if err != nil {
		return err
	}
	s.write.SetMaxOpenConns(1)
	if s.read, err = database(path, "ro", "cell_size_check(1)"); err != nil {
		return err
	}
	s.read.SetMaxOpenConns(readers)
	ctx := context.Background()
	if s.dirty {
		// Closing a writer brings a log that was left into the database; do not let it near one that is damaged.
		if err := glance(ctx, s.read); faultOf(err) == FaultDamaged {
			return err
		}
	}
	if s.conn, err = s.write.Conn(ctx); err != nil {
		return err
	}
	if err := s.conn.Raw(keepLog); err != nil {
		return err
	}
	steps, err := schema()
	if err != nil {
		return err
	}
	if err := migrate(ctx, s.conn, steps); err != nil {
		return err
	}
	return glance(ctx, s.conn)
}

// keepLog makes the last to close leave the emptied log and its index where they are: to make two files costs an Open more
// than all the rest of it.
func keepLog(conn any) error {
	control, ok := conn.(sqlite.FileControl)
	if !ok {
		return errors.New("the database driver cannot keep its log")
	}
	_, err := control.FileControlPersistWAL("main", 1)
	return err
}

// database prepares a pool for the file; nothing is opened before its first use.
func database(path, mode string, pragmas ...string) (*sql.DB, error) {
	q := url.Values{
		"mode":          {mode}, // rw or ro, never one that makes it: create does, whole or not at all
		"_busy_timeout": {fmt.Sprint(busyMS)},
		"_foreign_keys": {"1"},
		"_defensive":    {"1"},
		"_pragma":       pragmas,
	}
	connector, err := sqlite.NewConnector("file:" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode())
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// Close waits for the updates in progress and releases everything. Closing again does nothing and says the same.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.batch.close()
		var errs []error
		for _, stmt := range s.stmts {
			errs = append(errs, stmt.Close())
		}
		if s.conn != nil {
			errs = append(errs, s.conn.Close())
		}
		for _, db := range []*sql.DB{s.read, s.write} {
			if db != nil {
				errs = append(errs, db.Close())
			}
		}
		s.closed = errors.Join(append(errs, s.turn.close())...)
	})
	return s.closed
}

// Tend does what no start should wait for: where the database was not closed in order, it reads all of it once. A damaged
// database is an *[Error].
func (s *Store) Tend(ctx context.Context) error {
	if !s.dirty {
		return nil
	}
	var verdict string
	err := s.View(ctx, func(tx *Tx) error { return tx.QueryRow(ctx, "PRAGMA quick_check(1)").Scan(&verdict) })
	if err == nil && verdict != "ok" {
		err = diagnose("check database", s.dir, fmt.Errorf("%w: %s", errDamaged, verdict))
	}
	return err
}
