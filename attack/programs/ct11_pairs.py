# CT-11: takes 95 parts of 100 of the limit that the argument names as name=limit, says so, waits for a word and ends well
import os, subprocess, sys, time

name, limit = sys.argv[1].split("=")
limit = int(limit)
most = limit * 95 // 100
held = []
if name == "memory":
    # What the interpreter takes is counted too. Its pages of files, which may be somebody else's, make up for the kernel's part.
    own = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    held.append(b"x" * (most - own))
elif name == "disk":
    with open("/workspace/fill", "wb") as f:
        for _ in range(most >> 16):
            f.write(b"x" * 65536)
elif name == "files":
    have = os.statvfs("/workspace")
    for n in range(most - (have.f_files - have.f_ffree)):
        os.close(os.open("/tmp/%d" % n, os.O_CREAT | os.O_WRONLY))
elif name == "processes":
    held = [subprocess.Popen(["sleep", "600"]) for _ in range(most - 1)]
elif name == "output":
    os.write(1, b"o" * (most - len("full\n")))
elif name == "cpu":
    while time.process_time() < most / 1000:
        pass
elif name == "open files":
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(most - 3)]
os.write(1, b"full\n")
if os.read(0, 1) != b"\n":
    sys.exit(9)
for child in held if name == "processes" else []:
    child.kill()
