# RS-06, BL-001, BL-006, BL-008, BL-009: the leader ends at once, what it started holds the pipes, in the form that the argument names
[ "$(hostname)" = sandbox ] || exit 99
case $1 in
setsid) setsid sleep 600 & ;;
popen) exec python3 -c 'import subprocess; subprocess.Popen(["sleep", "60"])' ;;
inner) sh -c 'sleep 20 &' ;;
tee) exec > >(tee -a log) 2>&1; echo done; exit 0 ;;
daemon) exec python3 -c 'import os, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
time.sleep(600)' ;;
deaf) setsid sh -c 'trap "" TERM INT HUP QUIT; while :; do sleep 100; done' & ;;
stopped) setsid sh -c 'kill -STOP $$' & ;;
writes) setsid sh -c 'while :; do echo again; done' & ;;
esac
exit 0
