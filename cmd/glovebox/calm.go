package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"glovebox/internal/kernelfile"
)

// serverSlack is by how much the sleeps of a server's threads may be longer than asked for, in nanoseconds.
const serverSlack = 500_000

// sleepLonger lets the threads of this process sleep longer than they ask for. The runtime has one that looks after the
// others every 20 µs while anything is done, which a server, that does a little all the time, pays for with an eighth of its
// CPU time; the kernel's default makes that 70. Threads that begin later have it from those that begin them, and what is
// started in a sandbox has none of it. Only a privileged user may set it for the runtime's threads: the server of another
// does the same and takes more CPU time.
func sleepLonger() error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range threads {
		err := kernelfile.Write(filepath.Join("/proc", t.Name(), "timerslack_ns"), strconv.Itoa(serverSlack))
		switch {
		case errors.Is(err, fs.ErrPermission):
			return nil
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH): // else it ended meanwhile
			return err
		}
	}
	return nil
}
