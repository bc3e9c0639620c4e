# FS-06, FS-11, FS-28, FS-30: leaves links, a pipe, a socket and loops where artifacts are expected
[ "$(hostname)" = sandbox ] || exit 99
cd /outputs || exit 98
ln -s "$1" report.txt
ln -s /proc/self/environ env.txt
ln -s /etc/hostname hostname.txt
ln -s "../../../../../../..$1" climb.txt
ln -s "$(dirname "$1")" folder
ln -s /outputs/self self
ln -s b a; ln -s a b
ln -s /no/such/thing dangling
mkdir real && ln -s "$1" real/deep.txt && echo fine > real/ok.txt
mkfifo result.json real/pipe
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("door")'
ln real/ok.txt second-name.txt
echo fine > ok.txt
echo end
