package hostside

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSubordinates: a range that somebody has is never proposed, and what is proposed would be used.
func TestSubordinates(t *testing.T) {
	const absent = "-"
	for name, c := range map[string]struct {
		uids, gids string
		account    string
		noHelper   bool
		own        IDPool
		fix        string // FOLDER stands for that of the files; empty: nothing is missing
	}{
		"nobody has any": {"", "", "me", false, IDPool{},
			"sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 me"},
		"another user has the first": {"ann:100000:65536\n", "ann:100000:65536\n", "me", false, IDPool{},
			"sudo usermod --add-subuids 165536-231071 --add-subgids 165536-231071 me"},
		"in one file only": {"", "ann:100000:65536\n", "me", false, IDPool{},
			"sudo usermod --add-subuids 165536-231071 --add-subgids 165536-231071 me"},
		"each file another": {"ann:165536:65536\n", "ben:100000:65536\n", "me", false, IDPool{},
			"sudo usermod --add-subuids 231072-296607 --add-subgids 231072-296607 me"},
		"the last id of a range, the first of another": {"ann:90000:10001\n", "ann:231071:1\n", "me", false, IDPool{},
			"sudo usermod --add-subuids 231072-296607 --add-subgids 231072-296607 me"},
		"ranges that end just before and begin just after": {"ann:90000:10000\nben:165536:9\n", "", "me", false, IDPool{},
			"sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 me"},
		"what is no range": {"# ann\n\nann:100000\nann:x:1\nann:100000:0\n", "", "me", false, IDPool{},
			"sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 me"},
		"all are taken": {"ann:1:4294967294\n", "", "me", false, IDPool{},
			"look through FOLDER/subuid and FOLDER/subgid and give me the same 65536 ids in both (no 65536 ids are free)"},
		"there are no files": {absent, "", "me", false, IDPool{}, "sudo touch FOLDER/subuid FOLDER/subgid && " +
			"sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 me"},
		"no account": {"", "", "", false, IDPool{},
			"make an account for user id 4242 (sudo useradd --uid 4242 NAME), and run glovebox doctor again"},
		"no account and no helper": {"", "", "", true, IDPool{}, "sudo apt-get install uidmap; then " +
			"make an account for user id 4242 (sudo useradd --uid 4242 NAME), and run glovebox doctor again"},
		"no helper": {"ann:100000:65536\n", "", "me", true, IDPool{}, "sudo apt-get install uidmap && " +
			"sudo usermod --add-subuids 165536-231071 --add-subgids 165536-231071 me"},
		"only the helper is missing": {"me:100000:65536\n", "me:100000:65536\n", "me", true, IDPool{100000, 65536},
			"sudo apt-get install uidmap"},
		"all is there": {"ann:100000:65536\nme:165536:65536\n", "me:165536:65536\n", "me", false, IDPool{165536, 65536}, ""},
		"by number":    {"4242:165537:65536\n", "4242:165537:40\n", "", false, IDPool{165552, 25}, ""},
		"one file has one more": {"me:100000:65536\nme:165536:65536\n", "me:165536:65536\n", "me", false,
			IDPool{165536, 65536}, ""},
		"not the same in both": {"me:100000:65536\n", "me:165536:65536\n", "me", false, IDPool{},
			"sudo usermod --add-subuids 231072-296607 --add-subgids 231072-296607 me"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := Subordinates{filepath.Join(dir, "subuid"), filepath.Join(dir, "subgid")}
			for path, text := range map[string]string{s.uids: c.uids, s.gids: c.gids} {
				if text == absent {
					continue
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			own, ok := s.Own(4242, c.account)
			if own != c.own || ok != (c.own.Count > 0) {
				t.Errorf("own ids %v, %v, want %v", own, ok, c.own)
			}
			if ok && !c.noHelper {
				return
			}
			if fix := strings.ReplaceAll(s.Fix(4242, c.account, ok, !c.noHelper), dir, "FOLDER"); fix != c.fix {
				t.Errorf("fix  %s\nwant %s", fix, c.fix)
			}
		})
	}
}

// TestSubordinatesUnread: nothing is proposed where a file cannot be read.
func TestSubordinatesUnread(t *testing.T) {
	s := Subordinates{t.TempDir(), "/nowhere"} // a folder
	if fix := s.Fix(1, "me", false, true); !strings.HasPrefix(fix, "look through ") {
		t.Errorf("proposed without a look: %s", fix)
	}
}
