package store

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Fault is what is wrong with a data_dir.
type Fault string

// The faults.
const (
	FaultForeign  Fault = "foreign"   // it belongs to somebody else, others may write to it, or it is no Glovebox data_dir
	FaultReadOnly Fault = "read only" // it cannot be written to
	FaultFull     Fault = "full"      // its file system or quota has no room
	FaultDamaged  Fault = "damaged"   // the database cannot be trusted
	FaultNewer    Fault = "newer"     // a later Glovebox wrote it
	FaultBusy     Fault = "busy"      // other processes held it for too long
	FaultNoFolder Fault = "no folder" // it is no folder, or cannot be made one
)

// Error is a fault that the operator can mend.
type Error struct {
	Fault Fault
	// Fix is the command or setting that mends it. It names the folder.
	Fix string
	// Err is the cause; it may name paths of the host.
	Err error
}

// Error says what is wrong; it names paths of the host.
func (e *Error) Error() string { return fmt.Sprintf("data_dir is %s: %v", e.Fault, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is(err, &Error{Fault: f}) ask for the fault alone.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Fault == e.Fault
}

var (
	errDamaged  = errors.New("the database is damaged")
	errNewer    = errors.New("the database was written by a later version")
	errOwner    = errors.New("another user owns it")
	errWritable = errors.New("other users may write to it")
	errStrange  = errors.New("the database is another program's")
	errUnusable = errors.New("it cannot hold what Glovebox keeps")
	errFile     = errors.New("it is not a folder")
	errClosed   = errors.New("the store is closed")
)

// diagnose gives err the fault behind it, if it has one, and the step that failed.
func diagnose(step, dir string, err error) error {
	if err == nil {
		return nil
	}
	var known *Error
	if errors.As(err, &known) {
		return err
	}
	err = fmt.Errorf("%s: %w", step, err)
	fault := faultOf(err)
	if fault == "" {
		return err
	}
	return &Error{Fault: fault, Fix: fix(fault, dir, err), Err: err}
}

func faultOf(err error) Fault {
	for _, known := range []struct {
		err   error
		fault Fault
	}{
		{errDamaged, FaultDamaged}, {errNewer, FaultNewer}, {errOwner, FaultForeign}, {errWritable, FaultForeign},
		{errStrange, FaultForeign}, {errFile, FaultNoFolder},
		{errUnusable, FaultNoFolder},
		{syscall.ENOSPC, FaultFull}, {syscall.EDQUOT, FaultFull}, {syscall.EROFS, FaultReadOnly},
		{fs.ErrPermission, FaultReadOnly}, {syscall.ENOTDIR, FaultNoFolder}, {syscall.ELOOP, FaultNoFolder},
	} {
		if errors.Is(err, known.err) {
			return known.fault
		}
	}
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return ""
	}
	switch e.Code() & 0xff { // the primary code of an extended one
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return FaultDamaged
	case sqlite3.SQLITE_FULL:
		return FaultFull
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN:
		return FaultReadOnly
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return FaultBusy
	case sqlite3.SQLITE_IOERR:
		if e.Code() == sqlite3.SQLITE_IOERR_SHMSIZE { // what SQLite calls a full disk when it grows the index of the log
			return FaultFull
		}
	}
	return ""
}

func fix(f Fault, dir string, err error) string {
	switch f {
	case FaultForeign:
		switch {
		case errors.Is(err, errOwner):
			return fmt.Sprintf("run as the owner of %s, chown it to yourself, or set another data_dir", dir)
		case errors.Is(err, errWritable):
			return "chmod go-w " + dir
		}
		return "set data_dir to a folder of Glovebox's own"
	case FaultReadOnly:
		return fmt.Sprintf("make %s writable for this user (chmod u+rwx, mount -o remount,rw), or set another data_dir", dir)
	case FaultFull:
		return fmt.Sprintf("free space on the file system of %s (df -h %s; df -i %s)", dir, dir, dir)
	case FaultDamaged:
		return fmt.Sprintf("the database was left as it is: keep a copy of %s, then restore it from a backup or set another "+
			"data_dir", dir)
	case FaultNewer:
		return "run the Glovebox that wrote it or a later one, or set another data_dir"
	case FaultBusy:
		return fmt.Sprintf("try again; if it stays, look for a stopped process that holds it: fuser -v %s/%s", dir, databaseName)
	default:
		return fmt.Sprintf("set data_dir to a folder on a disk; %s is none", dir)
	}
}
