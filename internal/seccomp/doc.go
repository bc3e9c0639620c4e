// Package seccomp carries the program's system call filter, built and described by its package compile. The built filters
// are files of this package because building one, tables of calls included, takes most of a millisecond of every start; a
// test of compile holds them against what the rules say now.
//
// To build them anew after a change of the rules: go test ./internal/seccomp/compile -update
package seccomp

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"slices"
)

//go:embed amd64.bpf
var amd64 string

//go:embed arm64.bpf
var arm64 string

//go:embed amd64-template.bpf
var amd64Template string

//go:embed arm64-template.bpf
var arm64Template string

//go:embed amd64-guest.bpf
var amd64Guest string

//go:embed arm64-guest.bpf
var arm64Guest string

// Filter returns the system call filter for programs of an architecture, "amd64" or "arm64", as an array of struct
// sock_filter: what seccomp(SECCOMP_SET_MODE_FILTER) takes, with a length of len/8. The caller owns it.
func Filter(goarch string) ([]byte, error) {
	switch goarch {
	case "amd64":
		return []byte(amd64), nil
	case "arm64":
		return []byte(arm64), nil
	}
	return nil, fmt.Errorf("no system call filter for %q", goarch)
}

// Template is Filter for a template (see driver.Template) and what is made of it: it refuses what none of them needs, and
// leaves the making of sandboxes.
func Template(goarch string) ([]byte, error) {
	switch goarch {
	case "amd64":
		return []byte(amd64Template), nil
	case "arm64":
		return []byte(arm64Template), nil
	}
	return nil, fmt.Errorf("no system call filter for %q", goarch)
}

// Guest is Filter for a program on a kernel in user space: it refuses namespaces and mounts alone.
func Guest(goarch string) ([]byte, error) {
	switch goarch {
	case "amd64":
		return []byte(amd64Guest), nil
	case "arm64":
		return []byte(arm64Guest), nil
	}
	return nil, fmt.Errorf("no system call filter for %q", goarch)
}

// Pinned is Filter with one rule before it: sched_setaffinity is refused with EPERM. It is for programs that are kept to
// their CPUs by affinity alone, which they could widen again.
func Pinned(goarch string) ([]byte, error) {
	rest, err := Filter(goarch)
	if err != nil {
		return nil, err
	}
	// The kernel's names (linux/audit.h) and numbers (asm/unistd.h).
	arch, call := uint32(0xc000003e), uint32(203)
	if goarch == "arm64" {
		arch, call = 0xc00000b7, 122
	}
	const (
		load, jumpEqual, ret = 0x20, 0x15, 0x06   // BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
		number, archAt       = 0, 4               // offsets in struct seccomp_data
		refuse               = uint32(0x00050001) // SECCOMP_RET_ERRNO with EPERM
	)
	var first []byte
	for _, i := range []struct {
		code  uint16
		t, f  uint8 // how many instructions to leave out
		value uint32
	}{{load, 0, 0, archAt}, {jumpEqual, 0, 3, arch}, {load, 0, 0, number}, {jumpEqual, 0, 1, call}, {ret, 0, 0, refuse}} {
		first = binary.NativeEndian.AppendUint16(first, i.code)
		first = binary.NativeEndian.AppendUint32(append(first, i.t, i.f), i.value)
	}
	return slices.Concat(first, rest), nil
}
