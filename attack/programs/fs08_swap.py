# FS-08: swaps a file and a link under one name for as long as it lives, from children that outlive the leader
import os, socket, sys, time

if socket.gethostname() != "sandbox":
    sys.exit(99)
target = sys.argv[1]
os.chdir("/outputs")
for n in range(4):
    if os.fork() == 0:
        os.setsid()
        while True:
            name = "x%d" % n
            try:
                os.symlink(target, name + ".l")
                os.rename(name + ".l", name)
                with open(name + ".f", "w") as f:
                    f.write("ok")
                os.rename(name + ".f", name)
                os.mkdir("d%d" % n)
                os.rmdir("d%d" % n)
                os.symlink(os.path.dirname(target), "d%d" % n)
                os.unlink("d%d" % n)
            except OSError:
                pass
time.sleep(0.3)
print("end", flush=True)
os._exit(0)
