package glovebox

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is an amount of bytes. It reads and prints as people write it (256MiB, 1.5GiB, 100); as JSON it is a plain number of
// bytes.
type Size int64

// Binary multiples of a byte (IEC 80000-13).
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
	TiB Size = 1 << 40
)

var sizeUnits = []struct {
	name string
	size Size
}{
	{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3},
	{"T", TiB}, {"G", GiB}, {"M", MiB}, {"K", KiB}, {"k", KiB},
	{"B", 1},
}

// ParseSize reads a size such as 256MiB, 1.5GiB, 64M (binary, as memory tools read it), 100MB (decimal) or 4096. A size that
// is negative, not a number, or does not fit 63 bits is an error.
func ParseSize(s string) (Size, error) {
	digits, unit := strings.TrimSpace(s), Size(1)
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(digits, u.name); ok {
			digits, unit = strings.TrimSpace(rest), u.size
			break
		}
	}
	if digits == "" || strings.Trim(digits, "0123456789.") != "" {
		return 0, fmt.Errorf("size %q is not a number with a unit such as 256MiB", s)
	}
	if n, err := strconv.ParseInt(digits, 10, 64); err == nil {
		if n > math.MaxInt64/int64(unit) {
			return 0, fmt.Errorf("size %q is too large", s)
		}
		return Size(n) * unit, nil
	} else if errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("size %q is too large", s)
	}
	f, err := strconv.ParseFloat(digits, 64)
	if err != nil || unit == 1 { // there is no part of a byte
		return 0, fmt.Errorf("size %q is not a number with a unit such as 256MiB", s)
	}
	if f *= float64(unit); f >= math.MaxInt64 {
		return 0, fmt.Errorf("size %q is too large", s)
	}
	return Size(f), nil
}

// String prints s with the largest binary unit that keeps it exact or within one decimal.
func (s Size) String() string {
	for _, u := range sizeUnits[:4] {
		if s >= u.size {
			if s%u.size == 0 {
				return fmt.Sprintf("%d%s", s/u.size, u.name)
			}
			return fmt.Sprintf("%.1f%s", float64(s)/float64(u.size), u.name)
		}
	}
	return fmt.Sprintf("%dB", int64(s))
}
