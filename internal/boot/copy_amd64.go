package boot

import (
	"bytes"
	"unsafe"
)

// copyProcess is no function of Go's: see copy_amd64.s.
func copyProcess()

// copyStart is where it begins.
func copyStart() unsafe.Pointer

// copyMost is more than that code has, in bytes.
const copyMost = 256

// copyCode is the code with which a template copies itself, whatever the address.
func copyCode() []byte {
	code, _, found := bytes.Cut(unsafe.Slice((*byte)(copyStart()), copyMost), []byte("\x0f\x0bthe end"))
	if !found {
		return nil // which no template starts with
	}
	return bytes.Clone(code)
}
