package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"glovebox"
	"glovebox/internal/hostside"
)

// Controls examines the machine for each control of the rung without starting anything but an empty process of its own.
func (d *Driver) Controls(ctx context.Context) []glovebox.Control {
	all := []glovebox.Control{d.initControl(), d.namespaceControl(ctx), d.idControl(), d.landlockControl(), d.filterControl()}
	host, err := d.groups.Find(ctx)
	var known *glovebox.Error
	if errors.As(err, &known) {
		all = append(all, control("cgroups", false, known.Public, known.Fix))
	} else if err != nil {
		all = append(all, noGroups())
	} else {
		for _, f := range host.Controls(d.groups.Parent(host)) {
			if f.Name == "cpuset" && !f.Available {
				f.Detail += "; programs are kept to their CPUs by affinity, which they may not change then"
			}
			all = append(all, control("cgroup "+f.Name, f.Available, f.Detail, f.Fix))
		}
	}
	all = append(all, diskControl(), d.networkControl(), hostside.Trial(ctx, d))
	for i := range all {
		all[i].Required = !d.accepts(all[i].Name) && !slices.Contains(replaceable, all[i].Name) ||
			all[i].Name == "own user ids" && d.around.Root // for whom the caller's own id is no way out
	}
	return all
}

// replaceable are the controls in whose place there is another, or without which some runs alone are refused.
var replaceable = []string{"workspace on disk", "network device", "own user ids", "cgroup cpuset"}

func control(name string, available bool, detail, fix string) glovebox.Control {
	if available {
		fix = ""
	}
	return glovebox.Control{Isolation: glovebox.IsolationProcess, Name: name, Available: available, Detail: detail, Fix: fix}
}

func (d *Driver) initControl() glovebox.Control {
	if err := unix.Access(d.cfg.Init, unix.X_OK); err != nil {
		r := hostside.Missing("glovebox-init", hostside.InitKey, d.cfg.Init)
		return control("glovebox-init", false, r.Public, r.Fix)
	}
	return control("glovebox-init", true, "found", "")
}

// namespaceControl makes the namespaces of a sandbox for an init that is told nothing and ends.
func (d *Driver) namespaceControl(ctx context.Context) glovebox.Control {
	if unix.Access(d.cfg.Init, unix.X_OK) != nil {
		return control("namespaces", false, "they could not be tried: glovebox-init is missing", "mend glovebox-init first")
	}
	cmd := exec.CommandContext(ctx, d.cfg.Init)
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: hostside.Namespaces}
	err := cmd.Start()
	if err == nil {
		// How it ends says nothing: it was made.
		_ = cmd.Wait()
		detail := "user, mount, pid, network, ipc and uts"
		if !d.around.Root && d.around.Says("sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
			detail += "; AppArmor may take the rights in them away: whether a sandbox can be made tells"
		}
		return control("namespaces", true, detail, "")
	}
	r := d.around.UserNamespaces(err)
	return control("namespaces", false, r.Public, r.Fix)
}

func (d *Driver) idControl() glovebox.Control {
	if os.Getuid() == 0 {
		if r := d.around.Unmapped(d.cfg.IDs); r != nil {
			return control("own user ids", false, r.Public, r.Fix)
		}
		blocks := d.cfg.IDs.Count / hostside.BlockSize
		return control("own user ids", true, fmt.Sprintf("%d blocks from %d", blocks, d.cfg.IDs.Start), "")
	}
	uid, name := hostside.Account()
	pool, ok := hostside.SystemSubordinates().Own(uid, name)
	helper := hostside.FindProgram("newuidmap") != ""
	if !ok || !helper {
		detail := "no subordinate ids"
		if !helper {
			detail = "newuidmap is missing"
		}
		return control("own user ids", false, detail+": the program has the starting user's id outside",
			hostside.SystemSubordinates().Fix(uid, name, ok, helper))
	}
	return control("own user ids", true, fmt.Sprintf("%d blocks of subordinate ids", pool.Count/hostside.BlockSize), "")
}

func (d *Driver) landlockControl() glovebox.Control {
	abi := d.abi()
	if abi == 0 && d.around.Filtered() {
		return control("landlock", false, "a filter of system calls over Glovebox, as containers have it, hides it",
			hostside.SeccompFix)
	}
	if abi == 0 {
		return control("landlock", false, "the kernel has no Landlock",
			"boot with lsm=…,landlock on Linux 5.13 or later, or set drivers.process.accept: [landlock]")
	}
	return control("landlock", true, fmt.Sprintf("version %d", abi), "")
}

func (d *Driver) filterControl() glovebox.Control {
	var errno unix.Errno
	for _, action := range []uint32{unix.SECCOMP_RET_KILL_PROCESS, unix.SECCOMP_RET_USER_NOTIF} {
		if _, _, errno = unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0,
			uintptr(unsafe.Pointer(&action))); errno != 0 {
			break
		}
	}
	if errno != 0 && d.around.Filtered() {
		return control("system call filter", false, "a filter of system calls over Glovebox refuses another: "+errno.Error(),
			hostside.SeccompFix)
	}
	if errno != 0 {
		return control("system call filter", false, "the kernel does not filter system calls as needed: "+errno.Error(),
			"boot Linux 5.9 or later with CONFIG_SECCOMP_FILTER")
	}
	return control("system call filter", true, "kills a process, asks init", "")
}

func diskControl() glovebox.Control {
	const name = "workspace on disk"
	switch {
	case os.Getuid() != 0:
		return control(name, false, "only root has a backing with a hard limit: workspaces are in memory",
			"run as root, or ask for a --disk that is at least 64MiB less than --memory")
	case unix.Access("/dev/loop-control", unix.W_OK) != nil:
		return control(name, false, "no loop devices", "modprobe loop")
	}
	if hostside.FindProgram("mkfs.ext4") == "" {
		return control(name, false, "mkfs.ext4 is missing", "apt-get install e2fsprogs")
	}
	return control(name, true, "ext4 in a sparse file", "")
}
