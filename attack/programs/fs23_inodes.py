# FS-23: makes names until no more can be made: files, folders, links, sockets
import itertools, os, socket, sys

if socket.gethostname() != "sandbox" or not os.environ.get("HARNESS_OK"):
    sys.exit(99)
os.chdir(sys.argv[1])


def door(name):
    s = socket.socket(socket.AF_UNIX)
    s.bind(name)
    s.close()


made = 0
for kind, make in (("file", lambda n: os.close(os.open(n, os.O_CREAT | os.O_WRONLY))), ("folder", os.mkdir),
                   ("link", lambda n: os.symlink("x", n)), ("socket", door), ("pipe", os.mkfifo)):
    try:
        for n in itertools.count():
            make("%s%d" % (kind, n))
            made += 1
    except OSError as e:
        print(kind, e.strerror)
print("made", made, flush=True)
sys.exit(3)
