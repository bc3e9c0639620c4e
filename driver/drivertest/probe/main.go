//go:build linux

// What the Go runtime would keep open for itself is left alone, so that the descriptors are those that were inherited.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command probe is the program that the conformance suite runs inside sandboxes: static, so that it needs nothing of the
// image. It says what it sees and tries what it is told to; what that means is the suite's to judge, outside. It does no
// harm where a fence fails, and is run by the suite alone.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
)

// commands are what it can be told, by the first argument.
var commands = map[string]func(args []string) error{
	"facts":   facts,   // what it sees, as JSON
	"given":   given,   // its arguments and variables, as JSON
	"try":     try,     // WAY...: tries to get out, each way
	"calls":   calls,   // makes calls that must be refused
	"change":  change,  // PATH...: tries to change files, each in all ways
	"find":    find,    // NAME DIR...: looks for files of that name, following nothing
	"read":    read,    // PATH...: reads files
	"alloc":   alloc,   // KIND BYTES: uses so much memory, then waits for the end of its input
	"fill":    fill,    // KIND PATH BYTES: writes until it is refused
	"nodes":   nodes,   // DIR MANY: makes files until it is refused
	"loop":    loop,    // reaches itself by the loopback and by sockets
	"thread":  thread,  // MANY: starts threads that sleep until it is refused
	"open":    opens,   // MANY: opens descriptors until it is refused
	"flood":   flood,   // BYTES: writes so many to both streams at once
	"echo":    echo,    // answers each line at once
	"daemon":  daemon,  // leaves behind what no longer belongs to it, and waits
	"detach":  detach,  // the inner part of daemon
	"sleep":   sleep,   // until it is killed
	"tree":    tree,    // makes and ends children without end
	"serve":   serve,   // offers what a neighbour must not reach, and waits
	"wake":    wake,    // FILE: has a child wait for it in memory that both open by its name
	"resolve": resolve, // NAME...: asks for the addresses of names
	"send":    send,    // ADDRESS TEXT [again]: sends a datagram, and says what came back
	"meddle":  meddle,  // tries to change its network
	"spin":    spin,    // MS: uses a CPU for so long
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "probe: no such command:", os.Args[1:])
		os.Exit(64)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(65)
	}
}

// answer prints "yes" or "no" and what, and why not.
func answer(what string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stdout, "no %s: %v\n", what, err)
		return
	}
	fmt.Fprintf(os.Stdout, "yes %s\n", what)
}

// given prints exactly what the program was given.
func given(args []string) error {
	raw := map[string][][]byte{"args": {}, "env": {}}
	for _, a := range args {
		raw["args"] = append(raw["args"], []byte(a))
	}
	env, err := os.ReadFile("/proc/self/environ") // which the runtime has not looked at
	if err != nil {
		return err
	}
	for e := range splitNUL(env) {
		raw["env"] = append(raw["env"], e)
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	raw["dir"] = [][]byte{[]byte(dir)}
	return json.NewEncoder(os.Stdout).Encode(raw)
}

func splitNUL(text []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(text) > 0 {
			end := slices.Index(text, 0)
			if end < 0 {
				end = len(text)
			}
			if !yield(text[:end]) {
				return
			}
			text = text[min(end+1, len(text)):]
		}
	}
}
