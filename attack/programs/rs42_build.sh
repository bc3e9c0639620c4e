# RS-42, BL-145: attacks at build time: includes that never end, commands of the build, hooks that leave a child behind
[ "$(hostname)" = sandbox ] && [ "$HARNESS_OK" ] || exit 99
case $1 in
include)
  command -v gcc > /dev/null || { echo "not in image: gcc"; exit 0; }
  printf '#include "/dev/zero"\n' > a.c
  gcc a.c ;;
expand)
  command -v gcc > /dev/null || { echo "not in image: gcc"; exit 0; }
  python3 -c 'print("#define a0 x x x x x x x x x x")
for i in range(1, 30): print("#define a%d %s" % (i, ("a%d " % (i - 1)) * 10))
print("int a29;")' > b.c
  gcc -E b.c > /dev/null ;;
secret)
  command -v gcc > /dev/null || { echo "not in image: gcc"; exit 0; }
  printf '#include "%s"\n' "$2" > c.c
  gcc c.c
  printf '.incbin "%s"\n' "$2" > d.s
  gcc -c d.s -o d.o && cat d.o ;;
hook)
  cat > setup.py <<'P'
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
print("built")
P
  python3 setup.py ;;
esac
exit 6
