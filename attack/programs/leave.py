# LT-01: leaves marked files and a process that serves the mark; the argument is the mark
import os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
mark = sys.argv[1]
for folder in ("/workspace", "/tmp", "/var/tmp", "/dev/shm", "/run", "/outputs"):
    try:
        open(folder + "/left-" + mark, "w").write(mark)
    except OSError as e:
        print(folder, e.strerror)
doors = [socket.socket(), socket.socket(socket.AF_UNIX)]
doors[0].bind(("127.0.0.1", 28473))
doors[1].bind("\0left-behind")
for s in doors:
    s.listen()
    if os.fork() == 0:
        os.setsid()
        for n in (0, 1, 2):
            os.close(n)
        while True:
            c, _ = s.accept()
            c.sendall(mark.encode())
            c.close()
print("end")
