# OU-23, BL-086, BL-087: writes to both streams in turn and fails, in the form that the argument names
case $1 in
both) for i in 1 2 3; do echo "out $i"; echo "err $i" >&2; done ;;
error) echo boom >&2; exit 3 ;;
nothing) exit 1 ;;
esac
