package brokerd

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Harden keeps the memory of this process from others: no other process of the user may trace it or read its memory, it
// leaves no core, and where the kernel lets it, nothing of it is written to swap. What cannot be had is an error, but for
// the last, which needs a right that most users lack.
func Harden(log *slog.Logger) error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("keep others from reading memory: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("leave no core: %w", err)
	}
	unix.Umask(0o077)
	if !mayLock() {
		log.Info("memory may be written to swap: CAP_IPC_LOCK or an unlimited memlock keeps it from that")
		return nil
	}
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		log.Info("memory may be written to swap", "err", err)
	}
	return nil
}

// mayLock tells whether all memory can be locked, however much there will be. With a limit a later allocation would fail.
func mayLock() bool {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil && limit.Cur == unix.RLIM_INFINITY {
		return true
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	_, rest, ok := bytes.Cut(status, []byte("\nCapEff:\t"))
	if !ok || len(rest) < 16 {
		return false
	}
	effective, err := strconv.ParseUint(string(rest[:16]), 16, 64)
	return err == nil && effective&(1<<unix.CAP_IPC_LOCK) != 0
}
