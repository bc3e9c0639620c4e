# FS-22, RS-13: writes until nothing more fits, in each folder that takes files; the argument says when to stop
import os, socket, sys

if socket.gethostname() != "sandbox" or not os.environ.get("HARNESS_OK"):
    sys.exit(99)
total, block = 0, b"x" * (1 << 20)
for folder in sys.argv[1:]:
    try:
        f = open(folder + "/fill", "wb", buffering=0)
        while True:
            total += f.write(block)
    except OSError as e:
        print(folder, e.strerror, flush=True)
print("written", total, flush=True)
sys.exit(3)
