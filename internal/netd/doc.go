// Package netd is the network of one sandbox: a TCP/IP stack in user space, behind the sandbox's interface, and a resolver
// that forwards nothing. It decides nothing: each connection is the gateway's to accept.
package netd
