//go:build !amd64

package process

import (
	"errors"
	"os"
)

// spawnInit is for amd64 alone; New refuses other machines by name before anything gets here.
func spawnInit(string, *os.File, *os.File, int) (*initProcess, error) {
	return nil, errors.ErrUnsupported
}
