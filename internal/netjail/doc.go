// Package netjail starts netd processes, each as the program of a sandbox of its own, and keeps some ready.
//
// A netd reads hostile packets, so it is held as a program is: its sandbox shows it one file, itself, and has no network. It
// is given one descriptor, a socket to the gateway, over which the descriptor of its link comes. Until then it belongs to
// nobody, so that one that is ready serves any run.
package netjail
