// Package attack is the battery: hostile and clumsy programs, each with the outcome that it must meet, judged from outside.
//
// The programs are in the folder programs and only ever run inside a sandbox: the tests start the real command line with
// them, with things worth stealing planted around it, and then look at the result, at what was planted and at the host. What
// a program prints about itself is a hint; the canaries, the listeners, the process table and the clock are the evidence.
//
// A program prints a line that starts with "broke:" for each thing that it got and should not have got, and ends with the
// line "end", so that a program that could not do its work is not taken for one that was contained.
package attack
