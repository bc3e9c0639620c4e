# LT-09: acts after its end: by exit functions, finalisers, threads and a child that is left
import atexit, os, socket, sys, threading, time

if socket.gethostname() != "sandbox":
    sys.exit(99)


class Late:
    def __del__(self):
        os.write(1, b"finaliser\n")


held = Late()
atexit.register(lambda: os.write(1, b"exit function\n"))


def later():
    while True:
        time.sleep(0.05)
        open("/outputs/late", "a").write("x")


pid = os.fork()
if pid == 0:
    later()
threading.Thread(target=lambda: os.write(1, b"thread\n")).start()
time.sleep(0.2)
print("end")
