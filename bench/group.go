package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"glovebox"
)

// groupKey is where a configuration names the control group that sandboxes are in.
var groupKey = []string{"drivers", "process", "cgroup"}

// groupPrefix begins the name of a measurement's own control group.
const groupPrefix = "/glovebox-bench-"

// ownGroup gives the sandboxes of a measurement a control group of their own, so that nobody else's are counted in it. An
// ordinary user has only a part of the tree, and a configured group has its reason: both are left as they are.
func ownGroup(settings map[string]any) (map[string]any, error) {
	if os.Getuid() != 0 {
		return settings, nil
	}
	whole := maps.Clone(settings)
	if whole == nil {
		whole = map[string]any{}
	}
	at := whole
	for _, key := range groupKey[:len(groupKey)-1] {
		below, ok := at[key].(map[string]any)
		if at[key] != nil && !ok {
			return nil, glovebox.Internal("read the settings", fmt.Errorf("%s holds no keys", key))
		}
		if below = maps.Clone(below); below == nil {
			below = map[string]any{}
		}
		at[key] = below
		at = below
	}
	last := groupKey[len(groupKey)-1]
	if at[last] == nil {
		at[last] = fmt.Sprintf("%s%d", groupPrefix, os.Getpid())
	}
	return whole, nil
}

// removeGroup removes what ownGroup named, in every hierarchy, with what a server that was ended at a bad moment left in it.
// What dies there last may still be at it.
func removeGroup() error {
	if os.Getuid() != 0 {
		return nil
	}
	name := fmt.Sprintf("%s%d", groupPrefix, os.Getpid())
	var errs []error
	for _, pattern := range []string{"/sys/fs/cgroup" + name, "/sys/fs/cgroup/*" + name} {
		found, err := filepath.Glob(pattern)
		errs = append(errs, err)
		for _, dir := range found {
			errs = append(errs, removeSoon(dir))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return glovebox.Internal("remove the control group of the measurement", err)
	}
	return nil
}

// dyingLimit is how long processes of a server that has ended may take to be gone.
const dyingLimit = 10 * time.Second

func removeSoon(dir string) (err error) {
	for until := time.Now().Add(dyingLimit); time.Now().Before(until); wait(context.Background(), 20*time.Millisecond) {
		if err = removeTree(dir); err == nil {
			break
		}
	}
	return err
}

// removeTree removes folders that hold nothing but folders, as control groups do, whose files go with them.
func removeTree(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for _, d := range slices.Backward(dirs) {
		if failed := os.Remove(d); failed != nil && !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	return err
}
