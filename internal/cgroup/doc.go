// Package cgroup holds the control groups of one run: it makes them, sets and reads back their limits, reads their counters,
// kills everything in them and removes them again. It serves version 2 of control groups, version 1, and mixtures (version 1
// controllers beside a version 2 hierarchy, whose groups then do the killing).
//
// Where a run's groups are. Under each version 1 hierarchy that has a controller of use (memory, pids, cpu, cpuset, and
// cpuacct where no version 2 counts) there is a parent folder, by default "/glovebox", and in it one group per run,
// named after the run. In the version 2 hierarchy the run's group has two leaves: "run" for the program, with the limits
// and the kill switch, and "init", the cradle, for whoever starts the program. Where there is no version 2, a group of
// the freezer gathers the processes to kill them. The supervisor is in none of them.
//
// How a process gets in. It is born in Unified, by somebody in the Cradle, and then writes "0" to each descriptor of Tasks.
// The kernel checks the rights of whoever opened the descriptor, so that a process that gave up its own can still join.
//
// The files are written directly and not through a library: making a group is on the path of every run and takes a dozen
// small writes, of which each must fail loudly. github.com/opencontainers/cgroups was measured: as fast once warm, but it
// enables every controller of the machine along the path and accepts no other root than /sys/fs/cgroup.
//
// Host and Group are safe for concurrent use.
package cgroup
