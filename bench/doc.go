// Package bench measures what a run costs on this machine, beside the same program without protection and in other
// sandboxes, and prints what came of it as a table, as JSON and as plots.
//
// How it measures. A subject is a way to run a program: the interpreter itself, bubblewrap, an OCI runtime, the command
// line, an engine in this process, a server. All subjects get the same program text and the same output is wanted of each.
// Within one workload the subjects take turns, so that what else the machine does hits all of them alike: only ratios within
// one report mean anything. A time begins before the process is started or the request is made. It is taken twice: at the
// first byte of output, and at the end, which is when a process was waited for and its pipes were read to their end, or
// when Run returned, with everything of the run dead. Before each measurement there is the same short pause, so that
// what the one before left to be done beside it (a teardown, a new spare) is not charged to the next.
//
// CPU time. Of a started process it is what the kernel accounts to it and to all its waited-for descendants (getrusage), and
// unknown where it does not wait for them, as bubblewrap does not. Of a server it is that of its process, from
// /proc/PID/stat, and that of the control group that all its sandboxes are in, so that it includes spares made in place of
// those that were taken. Of an engine in this process it is that of this process and of its waited-for descendants, and so
// includes the measuring. Work of kernel threads is in none; Row.MachineCPUMS, the busy time of the whole machine, has that
// and everything else that ran meanwhile.
//
// Memory is the proportional share (Pss in /proc/PID/smaps_rollup): a page that n processes share counts 1/n in each, so
// that a sum over all processes that share it counts it once. Pages of the kernel's own are not in it.
package bench
