package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
)

// shown are folders and files of the host, besides /usr, without which some of its programs do not start.
var shown = []string{"/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"}

// usrLinks returns where / leads into /usr by links, as it does on most systems, and the folders of old that are none.
func usrLinks() (links map[string]string, folders []string) {
	links = map[string]string{}
	for _, name := range []string{"/bin", "/sbin", "/lib", "/lib64"} {
		if target, err := os.Readlink(name); err == nil {
			links[name] = target
		} else if _, err := os.Stat(name); err == nil {
			folders = append(folders, name)
		}
	}
	for _, name := range shown {
		if _, err := os.Stat(name); err == nil {
			folders = append(folders, name)
		}
	}
	return links, folders
}

// bubblewrap fences as fully as bwrap can by flags alone: all namespaces new, the host's /usr read-only and nothing else.
func (b *bench) bubblewrap() *subject {
	bwrap := found("bwrap")
	if bwrap == "" {
		b.note("%s: left out, bwrap is not installed", bwrapName)
		return nil
	}
	argv := []string{bwrap, "--unshare-all", "--new-session", "--die-with-parent", "--ro-bind", "/usr", "/usr"}
	links, folders := usrLinks()
	for _, name := range slices.Sorted(maps.Keys(links)) {
		argv = append(argv, "--symlink", links[name], name)
	}
	for _, name := range folders {
		argv = append(argv, "--ro-bind", name, name)
	}
	argv = append(argv, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/tmp")
	return &subject{name: bwrapName, rung: "bubblewrap", langs: slices.Sorted(maps.Keys(b.programs)), burst: true,
		unmetered: true,
		run: func(ctx context.Context, j workload) outcome {
			return startCommand(ctx, b.dir, append(slices.Clone(argv), interpreted(b.programs[j.lang], j.lang, j.code)...))
		}}
}

// container makes a bundle for each workload and runs it with an OCI runtime. Nothing limits what it may use.
func (b *bench) container(name string) *subject {
	runtime := found(name)
	if runtime == "" {
		b.note("%s: left out, it is not installed", name)
		return nil
	}
	bundles := map[string]string{}
	var state string
	made := func() (err error) {
		if state, err = b.folder(name); err != nil {
			return err
		}
		for _, j := range b.workloads {
			if bundles[j.title()], err = b.bundle(j); err != nil {
				return err
			}
		}
		return nil
	}
	if err := made(); err != nil {
		b.note("%s: left out, no bundle can be made: %v", name, err)
		return nil
	}
	argv := []string{runtime, "--root", state}
	switch name {
	case "crun":
		argv = append(argv, "--cgroup-manager=disabled")
	case "runc":
		argv = append(argv, "--rootless", "true")
	case "runsc":
		argv = append(argv, "--rootless", "--ignore-cgroups", "--network=none")
	}
	var n atomic.Int64
	return &subject{name: name, rung: name, langs: []string{"python"}, burst: name != "crun",
		run: func(ctx context.Context, j workload) outcome {
			id := fmt.Sprintf("glovebox-bench-%d-%d", os.Getpid(), n.Add(1))
			return startCommand(ctx, b.dir, append(slices.Clone(argv), "run", "--bundle", bundles[j.title()], id))
		}}
}

// bundle writes an OCI bundle in which the workload runs as an ordinary container would have it: namespaces of its own, one
// user id that is not root's outside, no capabilities, the host's /usr read-only.
func (b *bench) bundle(j workload) (string, error) {
	dir, err := b.folder("bundle")
	if err != nil {
		return "", err
	}
	root := filepath.Join(dir, "rootfs")
	for _, name := range []string{"", "usr", "proc", "dev", "tmp", "etc"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			return "", err
		}
	}
	type mount struct {
		Destination string   `json:"destination"`
		Type        string   `json:"type"`
		Source      string   `json:"source"`
		Options     []string `json:"options,omitempty"`
	}
	readOnly := func(name string) mount {
		return mount{name, "bind", name, []string{"bind", "ro", "nosuid", "nodev"}}
	}
	mounts := []mount{{"/proc", "proc", "proc", nil}, readOnly("/usr"),
		{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "mode=755", "size=65536k"}},
		{"/tmp", "tmpfs", "tmpfs", []string{"nosuid", "nodev", "mode=1777"}}}
	links, folders := usrLinks()
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			return "", err
		}
	}
	for _, name := range folders {
		mounts = append(mounts, readOnly(name))
		if err := standIn(name, filepath.Join(root, name)); err != nil {
			return "", err
		}
	}
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		uid, gid = outsideID, outsideID
	}
	object := func(pairs ...any) map[string]any {
		o := map[string]any{}
		for i := 0; i < len(pairs); i += 2 {
			o[pairs[i].(string)] = pairs[i+1]
		}
		return o
	}
	var namespaces []any
	for _, kind := range []string{"pid", "mount", "ipc", "uts", "network", "user"} {
		namespaces = append(namespaces, object("type", kind))
	}
	config := object("ociVersion", "1.0.2", "hostname", "bench", "root", object("path", "rootfs", "readonly", true),
		"process", object("terminal", false, "user", object("uid", 0, "gid", 0), "cwd", "/tmp", "noNewPrivileges", true,
			"args", interpreted(b.programs[j.lang], j.lang, j.code), "env", environment(), "capabilities", object()),
		"mounts", mounts, "linux", object("namespaces", namespaces,
			"uidMappings", []any{object("containerID", 0, "hostID", uid, "size", 1)},
			"gidMappings", []any{object("containerID", 0, "hostID", gid, "size", 1)}))
	text, err := json.Marshal(config)
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644)
}

// outsideID is what root in a container is outside when root starts it: an id that nobody has, where systemd's table of ids
// has nothing.
const outsideID = 0x7fff0000

// standIn makes an empty file or folder for name of the host to be shown at.
func standIn(name, at string) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.MkdirAll(at, 0o755)
	}
	return os.WriteFile(at, nil, 0o644)
}
