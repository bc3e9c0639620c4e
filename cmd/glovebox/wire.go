package main

import (
	"path/filepath"

	"glovebox"
	"glovebox/driver"
	"glovebox/driver/process"
	"glovebox/engine"
)

// open makes the local engine that s describes.
func open(s settings) (glovebox.Service, error) {
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
	e, err := engine.New(engine.Config{DataDir: s.dataDir, Policy: s.policy, Drivers: []driver.Driver{d}})
	if err != nil {
		return nil, glovebox.Internal("make the engine", s.located(err))
	}
	return e, nil
}
