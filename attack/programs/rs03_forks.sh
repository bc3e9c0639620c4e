# RS-03, BL-051: doubles processes for ever
[ "$HARNESS_OK" ] || exit 99
b() { b | b & }
b
sleep 2
exit 5
