# CR-01, LT-01: searches all of its own memory, and all that an interpreter knows, for marks that were never given to it
import gc, os, re, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
# Both patterns are written so that they do not find themselves.
marks = re.compile(b"planted" b"[-]([a-z ]{1,20})[-]([0-9A-Za-z]{8})")
own = sys.argv[1].encode()
found, bytes_seen = set(), 0
memory = os.open("/proc/self/mem", os.O_RDONLY)
for line in open("/proc/self/maps"):
    words = line.split()
    begin, end = (int(n, 16) for n in words[0].split("-"))
    if words[1][0] != "r" or words[-1] in ("[vvar]", "[vsyscall]", "[vvar_vclock]"):
        continue
    for at in range(begin, end, 1 << 20):
        try:
            text = os.pread(memory, min((1 << 20) + 64, end - at), at)
        except OSError:
            break
        bytes_seen += len(text)
        found.update(m.group(0) for m in marks.finditer(text))
print("searched", bytes_seen >> 20, "MiB", "own", own in found)
for mark in sorted(found - {own}):
    print("broke: in memory", mark)
gc.unfreeze()
for o in gc.get_objects():
    if type(o).__name__ in ("socket", "FileIO") and not getattr(o, "closed", False) and o.fileno() > 2 and o.fileno() != memory:
        print("broke: open", o)
    if type(o).__name__ == "frame" and o.f_code.co_filename == "<string>" and o.f_code.co_name not in ("run", "<module>"):
        print("broke: a frame of", o.f_code.co_name)
for folder, folders, names in os.walk("/proc/self/fd"):
    for name in names:
        try:
            link = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        if int(name) > 2 and int(name) != memory:
            print("broke: descriptor", name, link)
print("end")
