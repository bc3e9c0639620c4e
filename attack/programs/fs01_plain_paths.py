# FS-01: reads secrets of the host by their usual paths, and the paths given as arguments
import glob, os, socket, sys

if socket.gethostname() != "sandbox":
    sys.exit(99)
usual = ["/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/root/.bash_history", "/root/.ssh/id_ed25519", "/root/.ssh/id_rsa",
         "/etc/glovebox/glovebox.yaml", "/var/lib/glovebox/glovebox.db", "/var/log/syslog", "/var/log/auth.log", "/proc/kcore",
         "/proc/1/root/etc/shadow", "/etc/ssl/private/ssl-cert-snakeoil.key"]
for path in usual + sys.argv[1:]:
    for how in (path, "/proc/self/root" + path, "/proc/1/root" + path, "/proc/1/cwd" + path, "//" + path):
        try:
            if os.path.isdir(how):
                print("broke: listed", how, os.listdir(how))
                continue
            with open(how, "rb") as f:
                print("broke: read", how, f.read(200))
        except OSError as e:
            print(how, e.strerror)
for home in glob.glob("/root/*") + glob.glob("/root/.*") + glob.glob("/home/*"):
    print("broke: home", home)
for name in open("/etc/passwd").read().split("\n"):
    print(name)
print("end")
