// Command glovebox-init is process 1 of a sandbox. It is started by glovebox and does nothing when started by hand.
package main

import (
	"os"

	"glovebox/internal/sandboxinit"
)

func main() { os.Exit(sandboxinit.Main()) }
