# RS-23, BL-055, BL-077, BL-080: writes as fast as it can, in the form and amount that the arguments name
import os, sys

if not os.environ.get("HARNESS_OK"):
    sys.exit(99)
how, amount = sys.argv[1], int(sys.argv[2])
stream = 2 if how == "stderr" else 1
block = b"\n" * 65536 if how == "lines" else b"y" * 65536
left = amount
while left > 0:
    left -= os.write(stream, block[:left])
sys.exit(4)
