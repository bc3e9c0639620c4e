// Package netjail starts netd processes, each as the program of a sandbox of its own, and keeps some ready.
package netjail
