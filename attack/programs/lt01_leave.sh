# LT-01, LT-02, LT-04, LT-05, BL-147, BL-148: leaves files, hooks and processes for the next run; the argument is the mark
[ "$(hostname)" = sandbox ] || exit 99
for d in . "$HOME" /tmp /var/tmp /dev/shm /run /outputs /usr/lib/python3/dist-packages; do
  echo "$1" > "$d/.marker" 2> /dev/null
  echo "print('$1')" > "$d/sitecustomize.py" 2> /dev/null
  echo "echo $1" > "$d/.bashrc" 2> /dev/null
done
mkdir -p ~/.local/lib/python3.11/site-packages ~/.local/lib/python3.12/site-packages
for v in 3.11 3.12 3.13; do
  mkdir -p ~/.local/lib/python$v/site-packages
  echo "import sys; print('$1', file=sys.stderr)" > ~/.local/lib/python$v/site-packages/usercustomize.py
  echo "import sys; print('$1')" > ~/.local/lib/python$v/site-packages/z.pth
done
setsid python3 -c '
import os, socket, sys, threading
s = socket.socket(); s.bind(("0.0.0.0", 28473)); s.listen()
u = socket.socket(socket.AF_UNIX); u.bind("\0left-behind"); u.listen()
def serve(s):
    while True:
        c, _ = s.accept(); c.sendall(sys.argv[1].encode()); c.close()
threading.Thread(target=serve, args=(u,)).start()
serve(s)' "$1" < /dev/null > /dev/null 2>&1 &
sleep 0.3
echo end
