package hostside

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
)

// Subordinates are the files in the form of subuid(5) that say which ids users may hand out.
type Subordinates struct{ uids, gids string }

// SystemSubordinates are those of this machine.
func SystemSubordinates() Subordinates { return Subordinates{"/etc/subuid", "/etc/subgid"} }

// Account is the calling user's id and the name of its account, which is empty if there is none.
func Account() (uid int, name string) {
	uid = os.Getuid()
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		name = u.Username
	}
	return uid, name
}

// subordinateRange is a line of such a file.
type subordinateRange struct {
	owner        string // a name or an id
	start, count uint64
}

// read reads the lines of a file that can be understood. A file that is not there has none.
func (Subordinates) read(path string) ([]subordinateRange, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var list []subordinateRange
	for line := range strings.Lines(string(text)) {
		part := strings.Split(strings.TrimSpace(line), ":")
		if len(part) != 3 {
			continue
		}
		start, err := strconv.ParseUint(part[1], 10, 32)
		count, err2 := strconv.ParseUint(part[2], 10, 32)
		if err == nil && err2 == nil {
			list = append(list, subordinateRange{part[0], start, count})
		}
	}
	return list, nil
}

// Own finds the first range of a user's subordinate ids that begins alike in both files.
func (s Subordinates) Own(uid int, name string) (IDPool, bool) {
	uids, err := s.read(s.uids)
	gids, err2 := s.read(s.gids)
	if err != nil || err2 != nil {
		return IDPool{}, false
	}
	useless := func(r subordinateRange) bool {
		return r.owner != strconv.Itoa(uid) && (name == "" || r.owner != name) || r.start == 0 || r.count < 2*BlockSize ||
			r.start+r.count >= 1<<32
	}
	uids, gids = slices.DeleteFunc(uids, useless), slices.DeleteFunc(gids, useless)
	for _, u := range uids {
		for _, g := range gids {
			if u.start == g.start {
				// Blocks are numbered by multiples of their size, so that two readers of the file agree.
				skip := (BlockSize - u.start%BlockSize) % BlockSize
				return IDPool{uint32(u.start + skip), uint32(min(u.count, g.count) - skip)}, true
			}
		}
	}
	return IDPool{}, false
}

// What is proposed: ranges as useradd hands them out by default.
const (
	proposedFrom  = 100000
	proposedCount = 65536
)

// free finds a range of ids that nobody has in either file.
func (s Subordinates) free() (first, last uint64, err error) {
	uids, err := s.read(s.uids)
	gids, err2 := s.read(s.gids)
	if err := errors.Join(err, err2); err != nil {
		return 0, 0, err
	}
	taken := append(uids, gids...)
	// The range of Glovebox for root is not proposed either.
	taken = append(taken, subordinateRange{"", uint64(DefaultPool.Start), uint64(DefaultPool.Count)})
next:
	for first = proposedFrom; first+proposedCount < 1<<32; first += proposedCount {
		for _, r := range taken {
			if r.start < first+proposedCount && first < r.start+r.count {
				continue next
			}
		}
		return first, first + proposedCount - 1, nil
	}
	return 0, 0, fmt.Errorf("no %d ids are free", proposedCount)
}

// Fix says how a user gets subordinate ids and what maps them, of which one or both are missing.
func (s Subordinates) Fix(uid int, name string, ids, helper bool) string {
	install, then, and := "", "", ""
	if !helper {
		install = "sudo apt-get install uidmap"
		then, and = "; then ", " && "
	}
	if ids {
		return install
	}
	if name == "" { // usermod takes no numbers
		return fmt.Sprintf("%s%smake an account for user id %d (sudo useradd --uid %d NAME), and run glovebox doctor again",
			install, then, uid, uid)
	}
	first, last, err := s.free()
	if err != nil {
		return fmt.Sprintf("%s%slook through %s and %s and give %s the same %d ids in both (%v)", install, then,
			s.uids, s.gids, name, proposedCount, err)
	}
	create := ""
	for _, path := range []string{s.uids, s.gids} {
		if _, err := os.Lstat(path); err != nil { // usermod wants both to be there
			create = fmt.Sprintf("sudo touch %s %s && ", s.uids, s.gids)
		}
	}
	return fmt.Sprintf("%s%s%ssudo usermod --add-subuids %[4]d-%[5]d --add-subgids %[4]d-%[5]d %[6]s", install, and, create,
		first, last, name)
}
