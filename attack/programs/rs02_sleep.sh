# RS-02, BL-014, BL-016, BL-031: sleeps past the limit, in the form that the argument names
[ "$(hostname)" = sandbox ] || exit 99
case $1 in
front) sleep 999 ;;
brackets) (sleep 998) ;;
pipe) true | sleep 997 ;;
wait) sleep 996 & wait ;;
timeout) timeout 5000 sleep 4000 ;;
trap) trap "" TERM INT HUP; sh -c 'trap "" TERM; sleep 995' & wait ;;
forever) sleep infinity ;;
esac
