# FS-27: leaves a folder with as many names as it can make
import os, sys

if not os.environ.get("HARNESS_OK"):
    sys.exit(99)
os.chdir("/outputs")
try:
    for n in range(1000000):
        os.close(os.open("n%d" % n, os.O_CREAT | os.O_WRONLY))
except OSError as e:
    print(e)
print("made", n)
