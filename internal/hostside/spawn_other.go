//go:build !amd64

package hostside

import (
	"errors"
	"os"
)

// Spawn is for amd64 alone; New refuses other machines by name before anything gets here.
func Spawn(string, *os.File, *os.File, int, ...uintptr) (*Init, error) {
	return nil, errors.ErrUnsupported
}
