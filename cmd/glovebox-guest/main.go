// Command glovebox-guest is process 1 of a microVM. It is started by the guest's kernel and does nothing when started by
// hand.
package main

import (
	"os"

	"glovebox/internal/guest"
)

func main() { os.Exit(guest.Main()) }
