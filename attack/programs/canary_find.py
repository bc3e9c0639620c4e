# CR-12: looks for files of the given names everywhere, and reads what it finds
import os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
seen = 0
for folder, folders, names in os.walk("/"):
    if folder == "/":
        folders[:] = [f for f in folders if f != "proc"]
    seen += len(names)
    for name in sys.argv[1:]:
        if name in names:
            print("broke: found", folder, name)
            try:
                print(open(os.path.join(folder, name), "rb").read(200))
            except OSError as e:
                print(e.strerror)
print("files seen:", seen)
print("end")
