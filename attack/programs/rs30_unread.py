# RS-30: does not read its input, in the form that the argument names
import os, socket, sys, time

if socket.gethostname() != "sandbox":
    sys.exit(99)

if sys.argv[1] == "close":
    os.close(0)
elif sys.argv[1] == "one":
    os.read(0, 1)
time.sleep(1)
