# RS-07, RS-29: a child without the pipes writes a marker to the outputs for as long as it lives
[ "$(hostname)" = sandbox ] || exit 99
setsid sh -c 'exec <&- >&- 2>&-; while :; do date +%N >> /outputs/marker; sleep 0.02; done' &
sleep 0.3
echo end
exit 0
