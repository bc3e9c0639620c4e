// Package netwire is what a gateway and a netd say to each other over one SOCK_SEQPACKET socket.
package netwire
