// Package cgroup holds the control groups of one run: it makes them, sets and reads back their limits, reads their counters,
// kills everything in them and removes them again. It serves version 2 of control groups, version 1, and mixtures (version 1
// controllers beside a version 2 hierarchy, whose groups then do the killing).
//
// Where a run's groups are. Under each hierarchy that has a controller of use (memory, pids, cpu, cpuacct, cpuset) there
// is a parent folder, by default "/glovebox", and in it one leaf group per run, named after the run. One more group
// gathers all of the run's processes to kill them: in the version 2 hierarchy where there is one, else in the freezer's.
// The supervisor is in none of them. Groups never have children: what runs inside cannot reach these files.
//
// How a process gets in. It writes "0" to each descriptor of Procs, in order; or it is born in the version 2 group (Unified)
// and writes to the rest. The kernel checks the rights of whoever opened the descriptor, so that a process that gave up its
// own rights can still join.
//
// The files are written directly and not through a library: making a group is on the path of every run and takes a dozen
// small writes, of which each must fail loudly. github.com/opencontainers/cgroups was measured: as fast once warm, but it
// enables every controller of the machine along the path, accepts no other root than /sys/fs/cgroup, and adds a D-Bus client
// to the program.
//
// Host and Group are safe for concurrent use.
package cgroup
