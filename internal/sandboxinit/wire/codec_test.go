package wire

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// messages has every part with every field set to something of its own, and the empty ones.
func messages() map[string]Message {
	return map[string]Message{
		"setup": {Setup: &Setup{
			SingleID: true, KeepOwner: true, Template: true, Kernel: true, Guest: true, Beside: []Mount{{"/a", "/b"}}, Config: []byte("{}"),
			Mounts: []Mount{{"/usr", "/usr"}, {"", "/x"}}, Devices: []Mount{{"/dev/kvm", "/dev/kvm"}}, Links: []Link{{"/bin", "usr/bin"}},
			Files: []File{{"/etc/hosts", []byte("127.0.0.1 localhost\n")}, {"/etc/empty", []byte{}}}, Inputs: "/in",
			DiskBytes: math.MaxInt64, DiskFiles: 1, DiskGiven: true, Network: true, Hostname: "sandbox", Filter: bytes.Repeat([]byte{0, 0xff}, 3000),
			Landlock: true, OpenFiles: math.MaxUint64, Processes: 5,
		}},
		"ready": {Ready: &Ready{LandlockABI: 7, Buffer: "4096\t4096\t4096"}},
		"exec": {Exec: &Exec{
			Argv: [][]byte{[]byte("sh"), {}, {0xff, '\n'}}, Env: [][]byte{[]byte("A=b")}, Dir: "/workspace", HasCode: true,
			CodeName: "main.py", Files: 3, BornIn: true, CgroupFiles: 5, CPUs: []int{0, 300}, Freezer: true, Streams: 3, Stdin: true,
			Held: true, Forked: true, Channel: true,
		}},
		"started": {Started: &Started{
			Status: "Name:\tsh\n", Mounts: "1 2\n", UIDMap: "0 1 1\n", Namespaces: []string{"a", "b"}, Interfaces: []string{"lo"},
			Notifications: "anon_inode:seccomp notify",
		}},
		"held": {Held: &Held{Status: "Threads:\t1\n", Descriptors: []string{"0", "3"}}},
		"resume": {Resume: &Resume{Args: [][]byte{{}, []byte("-x")}, Env: [][]byte{[]byte("A=b")}, CodeName: "main.py",
			Stdin: true, Processes: 7}},
		"resumed": {Resumed: &Resumed{}},
		"go":      {Go: &Go{}},
		"ended":   {Ended: &Ended{WaitStatus: math.MaxUint32, NotStarted: "no such program"}},
		"open":    {Open: &Open{Path: []byte("a\xff/b")}},
		"opened":  {Opened: &Opened{NotRegular: true}},
		"look":    {Look: &Look{}},
		"looked":  {Looked: &Looked{Processes: []Process{{Status: "Pid:\t2\n", Namespaces: []string{"a"}}}}},
		"failed":  {Failed: &Failed{Step: "mount proc", Errno: 13, Detail: "permission denied"}},
		"attach": {Attach: &Attach{Device: TAP, Reopen: true, Sizes: []int64{0, 3},
			Shown: []Shown{{Path: "/etc/ssl/cert.pem", Over: true, Content: 1}}}},
		"attached": {Attached: &Attached{Interfaces: []string{"lo", "eth0"}, Routes: "eth0\t0\n", Mounts: "1 2\n",
			Buffer: AttachedBuffer}},
		"empty":      {Opened: &Opened{}},
		"empty list": {Started: &Started{Namespaces: []string{}, Interfaces: []string{}}},
	}
}

// TestEveryFieldIsTried: a field that no message above sets could be lost on the way.
func TestEveryFieldIsTried(t *testing.T) {
	set := map[string]bool{}
	for _, m := range messages() {
		_, p := m.is()
		v := reflect.ValueOf(p).Elem()
		for i := range v.NumField() {
			name := v.Type().Name() + "." + v.Type().Field(i).Name
			set[name] = set[name] || !v.Field(i).IsZero()
		}
	}
	for name, tried := range set {
		if !tried {
			t.Errorf("no message sets %s", name)
		}
	}
	for kind := byte(kindSetup); kind <= kindAttached; kind++ {
		var m Message
		if name := reflect.TypeOf(m.become(kind)).Elem().Name(); !tried(set, name) {
			t.Errorf("no message is a %s", name)
		}
	}
}

func tried(set map[string]bool, part string) bool {
	for name := range set {
		if strings.HasPrefix(name, part+".") {
			return true
		}
	}
	return part == "Go" || part == "Look" || part == "Resumed" // which have no fields
}

func TestRoundTrip(t *testing.T) {
	for name, m := range messages() {
		b, err := encode(m)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := decode(bytes.Clone(b))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d := cmp.Diff(m, got); d != "" {
			t.Errorf("%s (-sent +received):\n%s", name, d)
		}
		// Neither less nor more than a message is one.
		for n := range len(b) {
			if m, err := decode(bytes.Clone(b[:n])); err == nil {
				t.Fatalf("%s: %d of %d bytes are taken for %+v", name, n, len(b), m)
			}
		}
		if m, err := decode(append(bytes.Clone(b), 0)); err == nil {
			t.Errorf("%s and a byte is taken for %+v", name, m)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, b := range map[string][]byte{
		"nothing":              {},
		"no kind":              {0},
		"unknown kind":         {kindAttached + 1},
		"flag of 2":            {kindOpened, 2},
		"length beyond":        {kindOpen, 0xff, 0xff, 0xff, 0xff, 0x0f},
		"list beyond":          {kindExec, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
		"number of 11 bytes":   {kindReady, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1},
		"wait status too wide": {kindEnded, 0xff, 0xff, 0xff, 0xff, 0x7f, 0},
	} {
		if m, err := decode(b); err == nil {
			t.Errorf("%s: taken for %+v", name, m)
		}
	}
	if b, err := encode(Message{}); err == nil {
		t.Errorf("an empty message is sent as %x", b)
	}
}

// FuzzDecode: whatever comes, decoding ends, takes memory in proportion, and what it accepts is one message.
func FuzzDecode(f *testing.F) {
	for _, m := range messages() {
		b, err := encode(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(bytes.Clone(b))
		if err != nil {
			return
		}
		again, err := encode(m)
		if err != nil {
			t.Fatal(err)
		}
		back, err := decode(again)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(m, back); d != "" {
			t.Errorf("(-first +second):\n%s", d)
		}
	})
}
