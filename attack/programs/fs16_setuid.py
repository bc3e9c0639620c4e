# FS-16: gains an id by set-user-id files and by file capabilities
import os, shutil, socket, stat, subprocess, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
before = (os.getresuid(), os.getresgid(), os.getgroups())
if "NoNewPrivs:\t1" not in open("/proc/self/status").read():
    print("broke: new privileges may be gained")
for folder in ("/workspace", "/outputs"):
    copy = folder + "/id"
    shutil.copy("/usr/bin/id", copy)
    os.chmod(copy, 0o6755)
    out = subprocess.run([copy, "-u"], capture_output=True, text=True).stdout.strip()
    if out != str(before[0][1]):
        print("broke: set-user-id copy runs as", out)
    for name, value in (("security.capability", bytes.fromhex("0100000200000020000000000000000000000000")), ("trusted.x", b"1"),
                        ("security.ima", b"1")):
        try:
            os.setxattr(copy, name, value)
            print("broke: attribute", name)
        except OSError as e:
            print(name, e.strerror)
found = 0
for folder, folders, names in os.walk("/"):
    if folder == "/":
        folders[:] = [f for f in folders if f not in ("proc", "dev")]
    for name in names:
        path = os.path.join(folder, name)
        try:
            info = os.lstat(path)
        except OSError:
            continue
        if not stat.S_ISREG(info.st_mode) or not info.st_mode & (stat.S_ISUID | stat.S_ISGID) or path.endswith("/id"):
            continue
        found += 1
        code = "import ctypes, os, sys; os.execv(sys.argv[1], [sys.argv[1], '--version'])"
        p = subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
        try:
            for line in open("/proc/%d/status" % p.pid):
                if line.startswith(("Uid:", "Gid:")) and set(line.split()[1:]) != {str(before[0][0])}:
                    print("broke:", path, line.strip())
            p.wait(1)
        except (OSError, subprocess.TimeoutExpired):
            p.kill()
            p.wait()
print("set-user-id files in the image:", found)
if (os.getresuid(), os.getresgid(), os.getgroups()) != before:
    print("broke: ids changed")
print("end")
