# CT-11: stays at 95 parts of 100 below each limit that its arguments name as name=amount
import os, subprocess, sys, time

for argument in sys.argv[1:]:
    name, amount = argument.split("=")
    amount = int(amount)
    if name == "memory":
        held = b"x" * amount
        del held
    elif name == "disk":
        with open("/workspace/fill", "wb") as f:
            for _ in range(amount >> 16):
                f.write(b"x" * 65536)
        os.unlink("/workspace/fill")
    elif name == "files":
        os.mkdir("/tmp/many")
        for n in range(amount):
            os.close(os.open("/tmp/many/%d" % n, os.O_CREAT | os.O_WRONLY))
    elif name == "processes":
        children = [subprocess.Popen(["sleep", "0.3"]) for _ in range(amount)]
        for c in children:
            if c.wait() != 0:
                sys.exit(8)
    elif name == "output":
        os.write(1, b"o" * amount)
    elif name == "wall":
        time.sleep(amount / 1000)
    elif name == "cpu":
        while time.process_time() < amount / 1000:
            pass
