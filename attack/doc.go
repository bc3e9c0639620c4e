// Package attack is the battery: hostile and clumsy programs, each with the outcome that it must meet, judged from outside.
//
// The programs are in the folder programs and only ever run inside a sandbox. They have two users. Run takes those that do
// no damage where a fence fails, plants things worth stealing around a Service, runs them there and looks at the Result, at
// what was planted and at the host: a user's own proof on the user's own machine. The tests of this package run all of them,
// also what would hurt a host that it reached, through the real command line in a laboratory of their own.
//
// What a program prints about itself is a hint; the canaries, the listeners, the process table and the clock are the
// evidence. A program prints a line that starts with "broke:" for each thing that it got and should not have got, and ends
// with the line "end", so that a program that could not do its work is not taken for one that was contained. One that is to
// be looked at while it lives prints "held" instead, with whatever it got in its hands.
package attack
