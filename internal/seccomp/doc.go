// Package seccomp carries the program's system call filter, built and described by its package compile. The built filters
// are files of this package because building one, tables of calls included, takes most of a millisecond of every start; a
// test of compile holds them against what the rules say now.
//
// To build them anew after a change of the rules: go test ./internal/seccomp/compile -update
package seccomp

import (
	_ "embed"
	"fmt"
)

//go:embed amd64.bpf
var amd64 string

//go:embed arm64.bpf
var arm64 string

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
