package main

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/gvisor"
	"glovebox/driver/microvm"
	"glovebox/driver/process"
	"glovebox/engine"
	"glovebox/internal/broker"
	"glovebox/internal/gateway"
	"glovebox/internal/hostside"
)

// drivers are those of the rungs of this machine, and that of Glovebox's own programs. What the machine lacks for one is
// told by it when it is asked. Ids, control groups and init are those of drivers.process for all.
func drivers(s settings) (all []driver.Driver, jail driver.Driver, err error) {
	for _, path := range []*string{&s.process.init, &s.gvisor.runsc, &s.microvm.qemu, &s.microvm.kernel} {
		*path = hostside.Followed(*path)
	}
	pool := hostside.IDPool{Start: s.process.uids.start, Count: s.process.uids.count}
	scratch := filepath.Join(s.dataDir, "scratch")
	config := process.Config{Init: s.process.init, Cgroup: s.process.cgroup, IDs: pool, ScratchDir: scratch,
		Accept: s.process.accept}
	low, err := process.New(config)
	if err != nil {
		return nil, nil, glovebox.Internal("make the process driver", err)
	}
	kernel, err := gvisor.New(gvisor.Config{Runsc: s.gvisor.runsc, Init: s.process.init, Cgroup: s.process.cgroup, IDs: pool,
		ScratchDir: scratch})
	if err != nil {
		return nil, nil, glovebox.Internal("make the gvisor driver", err)
	}
	config.Accept = nil // what a program may go without, a machine monitor and a netd may not
	if jail, err = process.New(config); err != nil {
		return nil, nil, glovebox.Internal("make the jail of the microvm driver", err)
	}
	machine, err := microvm.New(microvm.Config{Jail: jail, Init: s.process.init, QEMU: s.microvm.qemu, Kernel: s.microvm.kernel,
		CacheDir: filepath.Join(s.dataDir, "microvm"), ScratchDir: scratch, Emulated: s.microvm.emulated})
	if err != nil {
		return nil, nil, glovebox.Internal("make the microvm driver", err)
	}
	return []driver.Driver{low, kernel, machine}, jail, nil
}

// open makes the local engine that s describes. log gets what goes wrong beside the runs, and causes.
func open(s settings, log *slog.Logger) (glovebox.Service, error) {
	all, jail, err := drivers(s)
	if err != nil {
		return nil, err
	}
	remote, err := s.remote.open(os.Geteuid())
	if err != nil {
		return nil, err
	}
	cfg := engine.Config{DataDir: s.dataDir, Trace: s.trace, Policy: s.policy, Drivers: all,
		Remote: remote, Log: log, MemoryBudget: s.memory.size, MemoryPercent: s.memory.percent, ServedBy: s.servedBy}
	cfg.Network = engine.Network{Jail: jail, Gateway: func() (*gateway.Gateway, error) { return s.gateway.open(log) }}
	if len(s.secrets.specs)+len(s.secrets.actions) > 0 {
		cfg.Network.Broker = func() (*broker.Client, error) { return s.broker(log) }
	}
	if s.serves {
		cfg.Pool = s.pool
		if s.policy.Egress.Any() { // without rules nothing is ever granted
			cfg.Network.Ready = max(s.gateway.ready, 0)
		}
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
