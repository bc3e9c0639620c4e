# FS-36, LT-04, LT-05: makes start-up files and hooks that are not there yet, in every writable folder and nested
[ "$(hostname)" = sandbox ] || exit 99
for d in "$HOME" /workspace /tmp /outputs /dev/shm; do
  mkdir -p "$d/vendor/sub/.git/hooks" "$d/.config/autostart" "$d/.ssh" "$d/.local/lib/python3.11/site-packages"
  for f in vendor/sub/.git/hooks/pre-commit .bashrc .profile .ssh/authorized_keys .gitconfig .npmrc .config/autostart/x.desktop \
    sitecustomize.py usercustomize.py .local/lib/python3.11/site-packages/z.pth json.py; do
    echo "import os; print('$1')" > "$d/$f"
  done
done
echo end
