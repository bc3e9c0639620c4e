# RS-10: stops itself and a child of its own, so that no signal that can be caught wakes them
[ "$(hostname)" = sandbox ] || exit 99
sleep 999 &
kill -STOP $!
kill -STOP $$
sleep 999
