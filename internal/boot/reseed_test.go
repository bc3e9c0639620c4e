package boot

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// drawing draws from all that reseed is for, and then in three copies, each the first process of a namespace, as is what it
// copies: whoever goes by process ids sees no difference.
const drawing = `
import ctypes, os, random, ssl, sys, tempfile, uuid
import multiprocessing, multiprocessing.process, multiprocessing.synchronize
boot = {"__builtins__": dict(__builtins__.__dict__)}
exec(SOURCE, boot)

def first():
    if ctypes.CDLL(None, use_errno=True).unshare(0x20000000) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    pid = os.fork()
    if pid:
        os._exit(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))
    assert os.getpid() == 1

def draw():
    try:
        import numpy.random
        print("numpy", numpy.random.randint(1 << 62))
    except ImportError:
        pass
    print("ssl", ssl.RAND_bytes(8).hex())
    print("temporary", next(tempfile._get_candidate_names()))
    print("lock", multiprocessing.synchronize.SemLock._make_name())
    print("key", bytes(multiprocessing.process.current_process()._config["authkey"]).hex())
    uuid._generate_time_safe = uuid._UuidCreate = None
    uuid._GETTERS, uuid._OS_GETTERS = [], []
    print("node", uuid.getnode())
    print("random", random.random())
    sys.stdout.flush()

first()
draw()
tempfile.gettempdir()
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        first()
        if sys.argv[1] == "reseed":
            boot["reseed"]()
        draw()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
`

func TestReseed(t *testing.T) {
	program := need(t, "python")
	if os.Getuid() != 0 {
		if os.Getenv("GLOVEBOX_TEST_ROOT") == "1" {
			t.Fatal("root was promised")
		}
		t.Skip("needs root")
	}
	text := strings.Replace(drawing, "SOURCE", strconv.QuoteToASCII(runPython+"\n"+holdPython), 1)
	repeated := func(how string) map[string]bool {
		out, err := exec.CommandContext(t.Context(), program, "-I", "-c", text, how).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		seen, again := map[string]bool{}, map[string]bool{}
		for line := range strings.Lines(string(out)) {
			kind, _, ok := strings.Cut(line, " ")
			if again[kind] = again[kind] || seen[line]; !ok {
				t.Fatalf("it printed %q", out)
			}
			seen[line] = true
		}
		if len(again) < 6 {
			t.Fatalf("it printed %q", out)
		}
		return again
	}
	for kind, again := range repeated("reseed") {
		if again {
			t.Errorf("%s is drawn again in a copy", kind)
		}
	}
	// What says that the test can tell.
	bare := repeated("not")
	t.Logf("without reseed, drawn again: %v", bare)
	for _, kind := range []string{"temporary", "lock", "key", "node", "ssl"} {
		if !bare[kind] {
			t.Errorf("%s is not drawn again without reseed either: this test tests nothing", kind)
		}
	}
}
