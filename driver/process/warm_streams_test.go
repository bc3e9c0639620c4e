package process_test

import (
	"strings"
	"testing"
)

// TestForkStreams: what is drawn at random by anything that a Python comes with is a copy's own, though copies have the same
// process id, by which libraries tell that they are one.
func TestForkStreams(t *testing.T) {
	needRoot(t)
	w := newWarm(t)
	h := hold(t, w.image, "python", "json", "csv", "re", "datetime", "statistics", "sqlite3", "math", "random", "collections",
		"itertools", "functools", "tempfile", "uuid", "ssl", "multiprocessing", "asyncio", "logging", "numpy")
	tm := w.template(w.spec(), h)
	const code = `
import gc, random, sys
gc.unfreeze()
for n, r in enumerate(sorted((o for o in gc.get_objects() if type(o) is random.Random), key=id)):
    print("Random%d" % n, r.getrandbits(64))
import sqlite3
db = sqlite3.connect(":memory:")
print("sqlite", *db.execute("select hex(randomblob(16))").fetchone())
db = sqlite3.connect("/tmp/a")
print("sqlite-file", *db.execute("select hex(randomblob(16))").fetchone())
import uuid
print("uuid1", uuid.uuid1())
print("uuid4", uuid.uuid4())
print("getnode", uuid.getnode())
import os, secrets, ssl, tempfile, multiprocessing, ctypes
print("secrets", secrets.token_hex(16))
print("ssl", ssl.RAND_bytes(16).hex())
print("authkey", bytes(multiprocessing.current_process().authkey).hex())
print("mktemp", tempfile.mktemp())
print("mkstemp", tempfile.mkstemp()[1])
libc = ctypes.CDLL(None)
name = ctypes.create_string_buffer(b"/tmp/XXXXXX")
libc.mkstemp(name)
print("libc-mkstemp", name.value)
if hasattr(libc, "arc4random"):
    print("arc4random", libc.arc4random(), libc.arc4random())
from multiprocessing import synchronize
print("semlock", synchronize.SemLock._make_name())
import random as r2
print("SystemRandom", r2.SystemRandom().random())
print("random", random.random(), random.choice(range(1 << 60)))
if "numpy" in sys.modules:
    import numpy
    print("numpy-legacy", numpy.random.random())
    print("numpy-rng", numpy.random.default_rng().random())
    print("numpy-state", numpy.random.get_state()[1][:4])
    print("numpy-bits", numpy.random.RandomState().random(), numpy.random.bit_generator.SeedSequence().entropy)
import email.generator, email.utils
print("boundary", email.generator._make_boundary())
`
	seen := map[string]string{}
	for range 3 {
		got := w.run(w.forked(tm, w.spec()), h, code)
		if got.Err != "" {
			t.Errorf("%+v", got)
		}
		if n := strings.Count(got.Out, "\n"); n < 20 {
			t.Errorf("it printed %d lines", n)
		}
		for line := range strings.Lines(got.Out) {
			if before, known := seen[line]; known {
				t.Errorf("two copies have %s%s", line, before)
			}
			seen[line] = ""
		}
	}
}

// TestForkForgets: a copy finds in its memory none of the orders by which others were made: its user ids are its own alone.
func TestForkForgets(t *testing.T) {
	needRoot(t)
	w := newWarm(t)
	h := hold(t, w.image, "python")
	tm := w.template(w.spec(), h)
	const code = `
import os, re
found = set()
ids = re.compile(rb"1000 ([0-9]{6,10}) 1[\n]")
memory = os.open("/proc/self/mem", 0)
for line in open("/proc/self/maps"):
    words = line.split()
    begin, end = (int(n, 16) for n in words[0].split("-"))
    if words[1][0] == "r" and not words[-1].startswith("[v"):
        found.update(m.group(1) for m in ids.finditer(os.pread(memory, end - begin, begin)))
own = open("/proc/self/uid_map", "rb").read().split()[-2]
print(len(found - {own}), len(found & {own}))
`
	for range 4 {
		if got := w.run(w.forked(tm, w.spec()), h, code); got.Out != "0 1\n" || got.Err != "" {
			t.Errorf("%+v", got)
		}
	}
}
