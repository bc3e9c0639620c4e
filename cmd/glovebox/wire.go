package main

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/process"
	"glovebox/engine"
)

// open makes the local engine that s describes. log gets what goes wrong beside the runs, and causes.
func open(s settings, log *slog.Logger) (glovebox.Service, error) {
	d, err := process.New(process.Config{
		Init:       s.process.init,
		Cgroup:     s.process.cgroup,
		IDs:        process.IDPool{Start: s.process.uids.start, Count: s.process.uids.count},
		ScratchDir: filepath.Join(s.dataDir, "scratch"),
		Accept:     s.process.accept,
	})
	if err != nil {
		return nil, glovebox.Internal("make the process driver", err)
	}
	remote, err := s.remote.open(os.Geteuid())
	if err != nil {
		return nil, err
	}
	cfg := engine.Config{DataDir: s.dataDir, Trace: s.trace, Policy: s.policy, Drivers: []driver.Driver{d},
		Remote: remote, Log: log, MemoryBudget: s.memory.size, MemoryPercent: s.memory.percent, ServedBy: s.servedBy}
	if s.serves {
		cfg.Pool = s.pool
	}
	e, err := engine.New(cfg)
	if err != nil {
		return nil, glovebox.Internal("make the engine", s.located(err))
	}
	return e, nil
}

// logger tells on standard error what the operator, who sits at this command line, has to know and no Result says: warnings,
// failures, and the causes of internal errors. Its lines hold no text from inside a sandbox, and whatever could act on a
// terminal is spelt out in quotes.
func logger(errs io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(errs, &slog.HandlerOptions{Level: slog.LevelWarn}))
}
