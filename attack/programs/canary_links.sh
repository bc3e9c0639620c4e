# FS-35: reaches the given files by other names: links, hard links, linked folders, /proc
[ "$(hostname)" = sandbox ] || exit 99
cd /workspace || exit 98
for secret in "$@"; do
  ln -s "$secret" s && cat s && echo "broke: symlink to $secret"
  rm -f s
  ln "$secret" h 2> /dev/null && echo "broke: hard link to $secret"
  ln -s "$(dirname "$secret")" d && cat "d/$(basename "$secret")" && echo "broke: through a linked folder"
  rm -f d
  for p in /proc/self/cwd /proc/self/root /proc/1/root /proc/1/cwd "/proc/$PPID/root"; do
    cat "$p$secret" 2> /dev/null && echo "broke: $p"
  done
done
echo end
