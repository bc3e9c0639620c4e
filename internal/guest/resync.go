package guest

import (
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"glovebox/internal/guestlink"
)

// resync gives a machine that was saved, of which there may be many by now, randomness and a time of its own. The boot id
// is made by the kernel when it is first read, which nothing does before.
func resync(r guestlink.Resync) (any, error) {
	if len(r.Random) < 32 || r.Nonce == "" {
		return nil, fmt.Errorf("%d random bytes are too few", len(r.Random))
	}
	f, err := os.OpenFile("/dev/urandom", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// struct rand_pool_info: so many bits, so many bytes, the bytes.
	pool := make([]uint32, 2+(len(r.Random)+3)/4)
	pool[0], pool[1] = uint32(8*len(r.Random)), uint32(len(r.Random))
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&pool[2])), 4*(len(pool)-2)), r.Random)
	const addEntropy, reseed = 0x40085203, 0x5207 // RNDADDENTROPY, RNDRESEEDCRNG (random(4))
	if err := ioctl(f, addEntropy, unsafe.Pointer(&pool[0])); err != nil {
		return nil, fmt.Errorf("add entropy: %w", err)
	}
	if err := ioctl(f, reseed, nil); err != nil {
		return nil, fmt.Errorf("reseed: %w", err)
	}
	now := unix.NsecToTimespec(r.UnixNano)
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &now); err != nil {
		return nil, fmt.Errorf("set clock to %v: %w", time.Unix(0, r.UnixNano), err)
	}
	return guestlink.Resync{Nonce: r.Nonce}, nil
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg)); e != 0 {
		return e
	}
	return nil
}
