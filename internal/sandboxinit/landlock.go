package sandboxinit

import (
	"fmt"

	landlock "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Rights of files, as of the first version of Landlock and as later versions added them (landlock(7), "VERSIONS").
const (
	readRights = landlock.AccessFSExecute | landlock.AccessFSReadFile | landlock.AccessFSReadDir
	makeNodes  = landlock.AccessFSMakeChar | landlock.AccessFSMakeBlock
	allV1      = landlock.AccessFSMakeSym<<1 - 1
	allV2      = allV1 | landlock.AccessFSRefer
	allV3      = allV2 | landlock.AccessFSTruncate
	allV5      = allV3 | landlock.AccessFSIoctlDev
)

// scopeVersion is the first version that keeps signals and abstract sockets within the fence.
const scopeVersion = 6

// makeRuleset builds the second fence on files: the first is what is mounted, and how. The rules name what is inside, so it
// is built last.
func (s *sandbox) makeRuleset() error {
	if !s.setup.Landlock {
		return nil
	}
	abi, err := landlock.LandlockGetABIVersion()
	if err != nil {
		return step("ask for Landlock", err)
	}
	s.abi = abi
	attr := landlock.RulesetAttr{HandledAccessFS: rightsOf(abi)}
	if abi >= scopeVersion {
		attr.Scoped = landlock.ScopeAbstractUnixSocket | landlock.ScopeSignal
	}
	if s.landlock, err = landlock.LandlockCreateRuleset(&attr, 0); err != nil {
		return step("make Landlock rules", err)
	}
	all := attr.HandledAccessFS
	for _, rule := range []struct {
		path   string
		rights uint64
		folder bool
	}{
		{"/", readRights, true},
		{"/workspace", all &^ makeNodes, true},
		{"/outputs", all &^ makeNodes, true},
		{"/tmp", all &^ makeNodes, true},
		{"/dev/shm", all &^ makeNodes, true},
		{"/dev/pts", all & (readRights | landlock.AccessFSWriteFile | landlock.AccessFSIoctlDev), true},
		{"/dev/null", deviceRights(all), false},
		{"/dev/zero", deviceRights(all), false},
		{"/dev/full", deviceRights(all), false},
		{"/dev/random", deviceRights(all), false},
		{"/dev/urandom", deviceRights(all), false},
		{"/dev/tty", deviceRights(all), false},
	} {
		if err := addRule(s.landlock, rule.path, rule.rights&all); err != nil {
			return step("make Landlock rule for "+rule.path, err)
		}
	}
	for _, m := range s.setup.Devices {
		if err := addRule(s.landlock, m.Target, deviceRights(all)); err != nil {
			return step("make Landlock rule for "+m.Target, err)
		}
	}
	return nil
}

func rightsOf(abi int) uint64 {
	switch {
	case abi >= 5:
		return allV5
	case abi >= 3:
		return allV3
	case abi == 2:
		return allV2
	}
	return allV1
}

func deviceRights(all uint64) uint64 {
	return all & (landlock.AccessFSReadFile | landlock.AccessFSWriteFile |
		landlock.AccessFSTruncate | landlock.AccessFSIoctlDev)
}

func addRule(ruleset int, path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = landlock.LandlockAddPathBeneathRule(ruleset, &landlock.PathBeneathAttr{AllowedAccess: rights, ParentFd: fd}, 0)
	if err != nil {
		return fmt.Errorf("rights %#x: %w", rights, err)
	}
	return nil
}
