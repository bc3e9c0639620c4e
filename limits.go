package glovebox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// Limits bound one run. In a request a zero field means "the policy's default"; in a grant every field is positive. No value
// means "endless".
type Limits struct {
	Wall      time.Duration // wall clock, from the release of the code
	CPU       time.Duration // CPU time of the whole tree of processes
	CPUs      float64       // CPU bandwidth in CPUs; the tree also sees ceil(CPUs) of them
	Memory    Size          // memory of the whole tree, its tmpfs files included, without swap
	Disk      Size          // bytes in /workspace, /tmp, /outputs and /dev/shm together
	Files     int64         // inodes in the same
	OpenFiles int64         // descriptors of one process
	Processes int64         // processes and threads of the whole tree
	Egress    Size          // bytes through the gateway
	Output    Size          // bytes on stdout and stderr together before the program is ended
	View      Size          // bytes of each stream shown in a Result: head and tail
}

// MemoryBesideDisk is what a workspace in memory must leave of the memory limit for the program itself: a workspace is in
// memory where Disk + MemoryBesideDisk is at most Memory, and on disk else.
const MemoryBesideDisk = 64 * MiB

// limitsWire is Limits as JSON spells it.
type limitsWire struct {
	WallMS      int64   `json:"wall_ms"`
	CPUMS       int64   `json:"cpu_ms"`
	CPUs        float64 `json:"cpus"`
	MemoryBytes Size    `json:"memory_bytes"`
	DiskBytes   Size    `json:"disk_bytes"`
	Files       int64   `json:"files"`
	OpenFiles   int64   `json:"open_files"`
	Processes   int64   `json:"processes"`
	EgressBytes Size    `json:"egress_bytes"`
	OutputBytes Size    `json:"output_bytes"`
	ViewBytes   Size    `json:"view_bytes"`
}

// MarshalJSON writes l as JSON spells it, with units in the names.
func (l Limits) MarshalJSON() ([]byte, error) {
	return json.Marshal(limitsWire{
		l.Wall.Milliseconds(), l.CPU.Milliseconds(), l.CPUs, l.Memory, l.Disk, l.Files, l.OpenFiles, l.Processes,
		l.Egress, l.Output, l.View,
	})
}

// UnmarshalJSON reads what MarshalJSON writes. An unknown name and a number of milliseconds that does not fit a
// time.Duration are errors.
func (l *Limits) UnmarshalJSON(b []byte) error {
	var w limitsWire
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&w); err != nil {
		return err
	}
	const most = int64(math.MaxInt64 / time.Millisecond)
	if w.WallMS > most || w.CPUMS > most || w.WallMS < -most || w.CPUMS < -most {
		return fmt.Errorf("wall_ms and cpu_ms are at most %d", most)
	}
	*l = Limits{
		time.Duration(w.WallMS) * time.Millisecond, time.Duration(w.CPUMS) * time.Millisecond, w.CPUs, w.MemoryBytes,
		w.DiskBytes, w.Files, w.OpenFiles, w.Processes, w.EgressBytes, w.OutputBytes, w.ViewBytes,
	}
	return nil
}
