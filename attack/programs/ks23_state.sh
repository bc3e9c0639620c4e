# KS-23: reads the filter and the privileges of itself, of threads, of children and of what they start
[ "$(hostname)" = sandbox ] || exit 99
look() { grep -HE '^(Seccomp|NoNewPrivs|Cap[A-Za-z]+):' "$@" 2> /dev/null; }
look /proc/self/status
look /proc/$$/status /proc/self/task/*/status
(look /proc/self/status)
setsid sh -c 'grep -HE "^(Seccomp|NoNewPrivs|Cap[A-Za-z]+):" /proc/self/status'
env -i /bin/sh -c 'grep -HE "^(Seccomp|NoNewPrivs|Cap[A-Za-z]+):" /proc/self/status'
python3 -c 'import threading
def look():
    for line in open("/proc/thread-self/status"):
        if line.startswith(("Seccomp", "NoNewPrivs", "Cap")): print("thread:" + line, end="")
t = threading.Thread(target=look); t.start(); t.join()'
python3 -c 'import pty; pty.spawn(["grep", "-HE", "^(Seccomp|NoNewPrivs|Cap[A-Za-z]+):", "/proc/self/status"])'
echo end
