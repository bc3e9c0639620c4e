# CR-01, CR-02, CR-04, BL-133, BL-134: prints every environment and command line in sight, and its own auxiliary vector
import glob, os, socket, subprocess, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
known = {"PATH", "HOME", "TMPDIR", "LANG"}
for name in sorted(os.environ):
    print(name, os.environ[name])
    if name not in known:
        print("broke: variable", name)
out = subprocess.run(["sh", "-c", "env"], capture_output=True, text=True).stdout
for line in out.split("\n"):
    name = line.partition("=")[0]
    if line and name not in known | {"PWD", "OLDPWD", "_", "SHLVL"}:
        print("broke: variable of a child", line)
for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/task/*/environ") + ["/proc/self/environ"]:
    try:
        data = open(path, "rb").read()
    except OSError as e:
        print(path, e.strerror)
        continue
    print(path, data)
    for item in data.split(b"\0"):
        if item and item.split(b"=")[0].decode() not in known:
            print("broke:", path, item)
    if path.split("/")[2] == "1" and data:
        print("broke: the first process has an environment")
for path in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/comm") + glob.glob("/proc/[0-9]*/auxv"):
    try:
        print(path, open(path, "rb").read().hex() if path.endswith("auxv") else open(path, "rb").read()[:200])
    except OSError as e:
        print(path, e.strerror)
pids = {p for p in os.listdir("/proc") if p.isdigit()}
if not pids <= {"1", str(os.getpid())}:
    print("broke: processes", pids)
print("end")
