package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
)

// Tx is the database within one Update or View; it ends with it. A Tx is not for concurrent use.
type Tx struct {
	conn  *sql.Conn
	stmts map[string]*sql.Stmt // kept over transactions by the one writer; nil for readers

	version int64 // as Version says; 0: it was not asked
}

// Version is a number that is another one than in an earlier Update of the same Store when anybody but this Store has
// written to the database since.
func (tx *Tx) Version(ctx context.Context) (int64, error) {
	if tx.version == 0 {
		if err := tx.QueryRow(ctx, "PRAGMA data_version").Scan(&tx.version); err != nil {
			return 0, err
		}
	}
	return tx.version, nil
}

// Exec runs a statement and returns how many rows it changed. The text of the statement must be a constant of the program.
func (tx *Tx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	var res sql.Result
	stmt, err := tx.prepared(ctx, query)
	switch {
	case err != nil:
	case stmt != nil:
		res, err = stmt.ExecContext(ctx, args...)
	default:
		res, err = tx.conn.ExecContext(ctx, query, args...)
	}
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// QueryRow reads at most one row; Scan of what it returns says sql.ErrNoRows when there is none.
func (tx *Tx) QueryRow(ctx context.Context, query string, args ...any) *sql.Row {
	if stmt, err := tx.prepared(ctx, query); err == nil && stmt != nil {
		return stmt.QueryRowContext(ctx, args...)
	}
	return tx.conn.QueryRowContext(ctx, query, args...)
}

// Query reads rows. The caller closes them; within an Update before the next statement, within a View several may be open.
func (tx *Tx) Query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if stmt, err := tx.prepared(ctx, query); err == nil && stmt != nil {
		return stmt.QueryContext(ctx, args...)
	}
	return tx.conn.QueryContext(ctx, query, args...)
}

func (tx *Tx) prepared(ctx context.Context, query string) (*sql.Stmt, error) {
	if tx.stmts == nil {
		return nil, nil
	}
	if stmt := tx.stmts[query]; stmt != nil {
		return stmt, nil
	}
	stmt, err := tx.conn.PrepareContext(ctx, query)
	if err == nil {
		tx.stmts[query] = stmt
	}
	return stmt, err
}

// View runs fn on one unchanging state of the database. An error of fn is returned, with its fault as an *[Error] when it
// has one.
func (s *Store) View(ctx context.Context, fn func(*Tx) error) (err error) {
	conn, err := s.read.Conn(ctx)
	if err != nil {
		return diagnose("read database", s.dir, err)
	}
	defer func() { err = diagnose("read database", s.dir, errors.Join(err, conn.Close())) }()
	if _, err := conn.ExecContext(ctx, "BEGIN"); err != nil {
		return err
	}
	defer func() {
		_, undo := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
		err = errors.Join(err, undo)
	}()
	return fn(&Tx{conn: conn})
}

// Update runs fn in a transaction and returns nil when what it did is on the disk. When fn returns an error nothing of it
// is kept and the error is returned. Updates that wait together share one transaction and one sync, each of them undone
// alone; fn may therefore run on another goroutine of a caller of Update, must be quick, and must not call Update. ctx ends
// the wait for a turn; once fn runs, its outcome is waited for.
func (s *Store) Update(ctx context.Context, fn func(context.Context, *Tx) error) error {
	j := &job{fn: fn, turn: make(chan bool, 1)}
	lead, err := s.batch.join(j)
	if err != nil {
		return fmt.Errorf("write database: %w", err)
	}
	if !lead {
		select {
		case lead = <-j.turn:
		case <-ctx.Done():
			if s.batch.withdraw(j) {
				return fmt.Errorf("write database: %w", context.Cause(ctx))
			}
			lead = <-j.turn
		}
	}
	if lead {
		s.commit(context.WithoutCancel(ctx), s.batch.take())
		s.batch.pass()
	}
	return diagnose("write database", s.dir, j.err)
}

// commit runs the jobs in one transaction. Every job has its outcome when it returns.
func (s *Store) commit(ctx context.Context, jobs []*job) {
	leave := s.turn.take()
	defer leave()
	tx := &Tx{conn: s.conn, stmts: s.stmts}
	_, err := tx.Exec(ctx, "BEGIN IMMEDIATE")
	if err == nil {
		if err = tx.each(ctx, jobs); err == nil {
			_, err = tx.Exec(ctx, "COMMIT")
		}
		if err != nil {
			_, _ = tx.Exec(ctx, "ROLLBACK") // it may have been undone already; the first error says enough
		}
	}
	for _, j := range jobs {
		switch {
		case err == nil:
		case j.err == nil:
			j.err = err
		default:
			j.err = errors.Join(err, j.err)
		}
	}
}

// each runs the jobs. An error means that the whole transaction is lost.
func (tx *Tx) each(ctx context.Context, jobs []*job) (err error) {
	if len(jobs) == 1 { // it is undone with the transaction
		return attempt(ctx, tx, jobs[0].fn)
	}
	for _, j := range jobs {
		// Where a job could not be undone alone, as when the disk is full, SQLite may have ended the transaction: nothing may
		// run after it.
		if j.err, err = tx.within(ctx, j.fn); err != nil {
			break
		}
	}
	return err
}

// within runs fn so that it can be undone alone. A second error means that the whole transaction is lost.
func (tx *Tx) within(ctx context.Context, fn func(context.Context, *Tx) error) (own, all error) {
	if _, err := tx.Exec(ctx, "SAVEPOINT job"); err != nil {
		return nil, err
	}
	if own = attempt(ctx, tx, fn); own != nil {
		if _, err := tx.Exec(ctx, "ROLLBACK TO job"); err != nil {
			return own, err
		}
	}
	_, all = tx.Exec(ctx, "RELEASE job")
	return own, all
}

// attempt keeps a panic of one job from the other callers whose jobs share the goroutine.
func attempt(ctx context.Context, tx *Tx, fn func(context.Context, *Tx) error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panicked: %v", r)
		}
	}()
	return fn(ctx, tx)
}

// batch gathers the jobs that wait while one caller, the leader, commits. No goroutine of its own: a leader takes all that
// wait, its own job among them, and hands the lead to the first that came since.
type batch struct {
	mu     sync.Mutex
	wait   []*job
	taken  []*job
	led    bool
	closed bool
	idle   sync.Cond
}

type job struct {
	fn   func(context.Context, *Tx) error
	turn chan bool // true: lead; false: done
	err  error     // set before turn says false, or by the leader for itself
}

// join adds the job and tells whether its caller is to lead.
func (b *batch) join(j *job) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false, errClosed
	}
	b.wait = append(b.wait, j)
	lead := !b.led
	b.led = true
	return lead, nil
}

// withdraw removes a job that nobody took and that was not asked to lead.
func (b *batch) withdraw(j *job) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, w := range b.wait {
		if w == j && len(j.turn) == 0 {
			b.wait = append(b.wait[:i], b.wait[i+1:]...)
			return true
		}
	}
	return false
}

const batchMost = 256 // jobs of one transaction: bounds how long the first of them waits for the last

// take is for the leader, whose job is the first: it takes the jobs to commit.
func (b *batch) take() []*job {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.wait), batchMost)
	b.taken = b.wait[:n:n]
	b.wait = append([]*job(nil), b.wait[n:]...)
	return b.taken
}

// pass tells the others that their jobs are done and hands on the lead.
func (b *batch) pass() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, j := range b.taken[1:] {
		j.turn <- false
	}
	b.taken = nil
	if len(b.wait) > 0 {
		b.wait[0].turn <- true
		return
	}
	b.led = false
	if b.idle.L != nil {
		b.idle.Broadcast()
	}
}

// close lets the jobs that wait end and refuses new ones.
func (b *batch) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.idle.L = &b.mu
	for b.led {
		b.idle.Wait()
	}
}
