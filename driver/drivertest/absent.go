package drivertest

import (
	"maps"

	"glovebox"
)

// Absent are the cases that a mechanism cannot hold on any machine, each with the reason. docs/drivers.md shows them.
func Absent(rung glovebox.Isolation) map[string]string {
	all := map[string]string{}
	maps.Copy(all, absent[rung])
	return all
}

var absent = map[glovebox.Isolation]map[string]string{
	glovebox.IsolationGVisor: {
		"template: copies share no chance and are apart":          noCopies,
		"template: inputs are a copy's own":                       noCopies,
		"template: its end is told, and is the end of its copies": noCopies,
		"template: a copy holds the limits of its run":            noCopies,
		"template: a copy gets a network as a cold sandbox does":  noCopies,
	},
}

// noCopies is about a process under a kernel in user space.
const noCopies = "a process has no copies beyond its own kernel; interpreters are held instead, each started by itself"

// promise is something that every driver is held to.
type promise struct {
	axis, text string
	cases      []string
}

// promises are all, in the order of docs/drivers.md. Each case belongs to one.
func promises() []promise {
	return append(promisesOfPlace(), promisesOfTime()...)
}

// promisesOfPlace are about what a program can reach and use up.
func promisesOfPlace() []promise {
	return []promise{
		{"files", "A program sees the image, its inputs, its code and four folders of its own, and nothing else.", []string{
			"files that were planted on the host are not found", "the host is not visible", "no inputs is an empty folder",
			"no code, no file", "a sandbox has nothing of an earlier one", "inputs are readable and nothing else",
			"code is readable and nothing else", "code of any bytes and of some size is there to read",
			"the scratch folders are writable"}},
		{"files", "It changes neither image nor inputs nor code.", []string{
			"inputs, code and image cannot be changed in any way", "the rest is not writable"}},
		{"files", "What it leaves is opened beneath its own folder, whatever its names, and only where it is a file or a folder.",
			[]string{"what is not regular is not opened", "opening does not leave the folder of outputs",
				"a device cannot be made or reached in outputs", "a socket or a device in outputs is not opened",
				"names in outputs are any bytes", "folders in outputs as deep as can be made are opened"}},
		{"network", "It reaches itself and nobody else: no address, no name, no socket, no shared memory and no key of the host.",
			[]string{"nothing of the host is reached, nor anything beyond", "a program reaches itself",
				"processes of a program share memory by its name"}},
		{"network", "Attached, it reaches whoever holds the other end of its link, who sees all that it sends, and nobody " +
			"else; nothing that it does changes that.", []string{"network: names and datagrams go over the link and nowhere else",
			"network: libraries find names as they do elsewhere", "network: what is made for one reaches nobody without it",
			"network: it is gone when the link is closed", "network: its files are there and cannot be changed",
			"network: a program cannot change it", "network: once, before the program, where it was made for it",
			"network: sandboxes see none of each other's", "network: an interpreter that waits gets it as a cold one does",
			"network: it is made and given up without anything that is left",
			"template: a copy gets a network as a cold sandbox does"}},
		{"credentials", "It inherits nothing: the variables are those given, the descriptors its three streams.", []string{
			"the environment is exactly what was given", "only the standard streams are inherited",
			"variables, descriptors and memory of the host stay there"}},
		{"identity", "It is nobody, has no right and no way to one, and no terminal.", []string{
			"a program is nobody and has no rights", "calls that change the machine are refused"}},
		{"identity", "Nothing names the host, its boot or the sandbox.", []string{"nothing names the host or the boot"}},
		{"compute", "Memory: 95 percent of the limit pass; above it, with what the rung takes beside it, is killed and counted.",
			[]string{"memory: 95 percent of the limit pass, of any kind",
				"memory: above the limit is killed and counted, of any kind",
				"memory: the kernel kills and it is counted", "memory: just below the limit is fine",
				"memory: a limit counts for its own sandbox alone"}},
		{"compute", "CPUs: bandwidth is bounded, and as many are shown as were granted.", []string{
			"cpus: bandwidth and the number shown are bounded", "cpus: half a CPU is half a CPU",
			"cpus: as many are shown as were granted"}},
		{"compute", "Processes and threads are bounded, and what is refused is counted.", []string{
			"processes: a fork is refused and it is counted", "processes: threads count", "processes: a bomb stays in its sandbox"}},
		{"compute", "Disk and files are bounded over all its folders, also what has no name any more.", []string{
			"disk: full is seen as no free bytes", "disk: the limit is met exactly, over all folders",
			"disk: what has no name any more counts", "disk: a sandbox's room is its own, and is back when it ends",
			"files: full is seen as no free files", "files: the limit is met exactly"}},
		{"compute", "Descriptors are bounded, and the bound cannot be raised.", []string{
			"descriptors: one more is refused", "descriptors: the limit is met exactly and cannot be raised"}},
		{"compute", "Counters only grow, fit the limits and can be read until the sandbox is closed.", []string{
			"counters only grow, fit the limits and outlive the tree", "cpu time only grows and outlives the tree"}},
	}
}

// promisesOfTime are about how a program begins and ends, and what is said of it.
func promisesOfTime() []promise {
	return []promise{
		{"lifetime", "Kill, close and giving up are right at every instant, and leave nothing.", []string{
			"kill at any instant", "close at any instant", "a start that is given up at any instant",
			"an exec that is given up at any instant", "kill, close and sample at the same time", "kill right after exec",
			"kill ends daemons in sessions of their own", "daemons that hold the streams are ended",
			"close kills, may be called again, leaves nothing", "close of an unused sandbox", "a cancelled start makes nothing",
			"an exec that is given up before it begins", "a start that cannot be made leaves nothing",
			"nothing of the host is kept after many", "an id is free again after close"}},
		{"lifetime", "Everything dies within a second of the process that made it, however that died.", []string{
			"a sandbox dies within a second of its maker", "what waits dies within a second of its maker"}},
		{"lifetime", "How the leader ended is said as it was, whoever else still lives.", []string{
			"exit codes are the leader's", "a signal is told apart from an exit", "a program that cannot be executed",
			"the leader's end is seen while a child lives"}},
		{"lifetime", "Sandboxes do not see each other, before, after or at the same time, and share no chance.", []string{
			"sandboxes at the same time do not see each other", "sandboxes at the same time do not mix",
			"two sandboxes share no chance and no name"}},
		{"commands", "A command is started as it was given, byte by byte, or refused.", []string{
			"arguments and variables arrive byte by byte", "the working directory is what was given",
			"a folder to work in that is not there is told", "a bare name is looked up in PATH",
			"a command that cannot be is refused",
			"one program at a time, and another after it", "a closed sandbox takes nothing"}},
		{"streams", "Streams carry any bytes, whole and as they come, and hold up nobody.", []string{
			"stdout and stderr are apart and complete", "streams carry any bytes", "no stdin is an empty stdin",
			"stdin is streamed to its end", "stdin is streamed while the program answers", "a stdin that nobody reads delays nothing",
			"a stdin that never comes delays nothing", "a stream that the program closes ends",
			"output: a flood of both streams arrives whole", "output: what nobody reads holds up nobody"}},
		{"truth", "The posture says what is in force, and what the machine can give is said before a start.", []string{
			"the posture says what a program sees", "posture and release time", "what the machine can give is said before a start"}},
		{"ready before", "An interpreter that waits for its code is as strong as a cold one, serves once and leaves nothing.",
			[]string{"held: code, arguments, variables and input arrive", "held: the fence is that of what is made for a run",
				"held: another command, a second one, late limits", "held: the limits of the run hold",
				"held: what is not used leaves nothing", "held: given up at any instant", "held: its end is told"}},
		{"ready before", "Copies of a template are apart, without chance, file or socket of another, and hold their limits.",
			[]string{"template: copies share no chance and are apart", "template: inputs are a copy's own",
				"template: its end is told, and is the end of its copies", "template: a copy holds the limits of its run"}},
	}
}
