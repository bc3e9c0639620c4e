# RS-28: closes its streams, works on, leaves a file and an exit code
import os, socket, sys, time

if socket.gethostname() != "sandbox":
    sys.exit(99)

os.close(1)
os.close(2)
time.sleep(1.5)
open("/outputs/done", "w").write("1")
os._exit(7)
