// Command glovebox-netd is the network of one sandbox, in a sandbox of its own. It is started by glovebox, with a socket to
// it as descriptor 3, and does nothing when started by hand.
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"

	"glovebox/internal/netd"
	"glovebox/internal/netwire"
)

// memory is how much this program takes before it looks harder for what it does not need, in bytes. What a sandbox can make
// it keep lies below.
const memory = 48 << 20

func main() {
	debug.SetMemoryLimit(memory)
	// The stack's own goroutine looks for a connection's lock in a loop while another one answers its first packet; with
	// several at a time that takes more of a new connection than all else. One also has less memory.
	runtime.GOMAXPROCS(1)
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "glovebox-netd:", err)
		os.Exit(1)
	}
}

func serve() error {
	const gateway = 3
	if err := syscall.SetNonblock(gateway, true); err != nil { // before os looks whether it is
		return fmt.Errorf("descriptor %d: %w: glovebox starts this program, it cannot be started by hand", gateway, err)
	}
	peer, err := netwire.NewPeer(os.NewFile(gateway, "gateway"))
	if err != nil {
		return err
	}
	defer peer.Close()
	if err := netd.Fence(); err != nil {
		return err
	}
	return netd.Run(peer)
}
