# RS-10, BL-012: stops itself, its group and everything that it can see
sleep 999 &
setsid sleep 999 &
kill -STOP -1 2> /dev/null
kill -STOP 0
kill -STOP $$
sleep 999
