package gvisor

import (
	"encoding/json"
	"fmt"
	"path"

	"glovebox"
	"glovebox/internal/sandboxinit/wire"
)

// What the guard's root has beside the program's.
const (
	runscPath = "/bin/runsc"
	stateDir  = "/run"
)

// The parts of a bundle's configuration (OCI runtime specification, version 1) that runsc is given. What is left out has the
// value that the sandbox must have.
type (
	bundle struct {
		Version  string         `json:"ociVersion"`
		Process  bundleProcess  `json:"process"`
		Root     bundleRoot     `json:"root"`
		Hostname string         `json:"hostname"`
		Mounts   []bundleMount  `json:"mounts"`
		Linux    bundlePlatform `json:"linux"`
	}
	bundleProcess struct {
		User struct {
			UID uint32 `json:"uid"`
			GID uint32 `json:"gid"`
		} `json:"user"`
		Args         []string            `json:"args"`
		Env          []string            `json:"env"`
		Cwd          string              `json:"cwd"`
		Capabilities map[string][]string `json:"capabilities"`
	}
	bundleRoot struct {
		Path     string `json:"path"`
		Readonly bool   `json:"readonly"`
	}
	bundleMount struct {
		Destination string   `json:"destination"`
		Type        string   `json:"type"`
		Source      string   `json:"source"`
		Options     []string `json:"options"`
	}
	bundlePlatform struct {
		Namespaces []bundleNamespace `json:"namespaces"`
	}
	bundleNamespace struct {
		Type string `json:"type"`
		Path string `json:"path,omitempty"`
	}
)

// guestCapabilities are those of the init under the kernel, over nothing outside of it. The program has none.
var guestCapabilities = []string{
	"CAP_SYS_ADMIN",            // the group that bounds processes
	"CAP_SETUID", "CAP_SETGID", // become the program
	"CAP_SETPCAP",                   // drop the program's bounds
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", // the program's pipes, the group's folder
	"CAP_KILL", "CAP_SYS_PTRACE", "CAP_SYS_RESOURCE",
}

// configure writes the configuration. The folder of shared memory has so much room of its own: to runsc two names of one
// file of the host are two files, which share no memory in which processes could wait for each other, and that is how
// semaphores with names are made. With a network the kernel is where its device is: in the namespace of the guard.
func configure(hostname string, shared glovebox.Size, network bool) ([]byte, error) {
	b := bundle{Version: "1.0.0", Hostname: hostname, Root: bundleRoot{wire.ImageDir, true}}
	b.Process.Args, b.Process.Cwd = []string{"/glovebox-init"}, "/"
	b.Process.Env = []string{"GOMAXPROCS=1"}
	b.Process.Capabilities = map[string][]string{}
	for _, set := range []string{"bounding", "effective", "inheritable", "permitted"} {
		b.Process.Capabilities[set] = guestCapabilities
	}
	for _, kind := range []string{"pid", "ipc", "uts", "mount", "network"} {
		own := bundleNamespace{Type: kind}
		if kind == "network" && network {
			own.Path = "/proc/self/ns/net"
		}
		b.Linux.Namespaces = append(b.Linux.Namespaces, own)
	}
	harmless := []string{"nosuid", "nodev"}
	b.Mounts = []bundleMount{
		{"/proc", "proc", "proc", append([]string{"noexec"}, harmless...)},
		{"/code", "tmpfs", "tmpfs", append([]string{"size=64m", "mode=0755"}, harmless...)},
		{"/dev/shm", "tmpfs", "tmpfs", append([]string{fmt.Sprintf("size=%d", shared), "mode=1777"}, harmless...)},
	}
	for _, at := range []string{"/workspace", "/outputs", "/tmp"} {
		b.Mounts = append(b.Mounts, bundleMount{at, "bind", path.Join(wire.ImageDir, at), append([]string{"rw"}, harmless...)})
	}
	return json.Marshal(b)
}

// arguments are runsc's. id names the kernel among those that the sandbox has had.
func arguments(id string, network bool) []string {
	with := "none"
	if network {
		with = "sandbox" // its own stack, on the interface that it finds
	}
	return []string{
		runscPath, "--root=" + stateDir, "--network=" + with, "--platform=systrap", "--overlay2=none",
		// The fast path waits for system calls by spinning, on the CPU time of the run: without it starts took 5 to 15 % less CPU.
		"--systrap-disable-fast-path",
		"--in-sandbox-cgroup=v2", // whose bound on processes holds; see sandboxinit
		"--ignore-cgroups",       // they are the driver's
		"--host-settings=ignore", // what runsc would advise to change is the machine's owner's to decide
		"run", "--detach", "--bundle=" + path.Dir(wire.ConfigPath), "--pass-fd=3:3", "--exec-fd=4", id,
	}
}
