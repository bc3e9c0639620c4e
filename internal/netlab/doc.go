// Package netlab is support for tests: a machine with an internet around it, both in network namespaces of their own, so
// that what leaves a sandbox can be judged from outside. The machine is where Glovebox runs; every address beyond it is
// the laboratory's: an authoritative name server, servers of several kinds, what a leak would look for (a metadata
// service, a public resolver), and a sink that sees each packet which leaves the machine. The interfaces of the real
// machine are never touched.
package netlab
