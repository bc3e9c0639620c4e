# FS-12: fills every writable folder with links to what cleaning up could change, and locks it
[ "$(hostname)" = sandbox ] || exit 99
for d in /workspace /tmp /outputs /dev/shm; do
  for target in "$@"; do
    i=$((i + 1))
    ln -s "$target" "$d/file$i"
    ln -s "$(dirname "$target")" "$d/folder$i"
    mkdir -p "$d/locked$i" && ln -s "$target" "$d/locked$i/file" && ln -s / "$d/locked$i/root" && chmod 000 "$d/locked$i"
  done
done
chmod 4777 /workspace /outputs 2>/dev/null
chmod 000 /outputs /workspace /tmp 2>/dev/null
chattr +i /workspace 2>/dev/null
echo end
