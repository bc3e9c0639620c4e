# RS-34: leaves its control group, raises its limits, asks for a program to be run on release
[ "$(hostname)" = sandbox ] || exit 99
cat /proc/self/cgroup
while IFS=: read -r _ _ path; do
  [ "$path" = / ] || echo "broke: group $path"
done < /proc/self/cgroup
find / \( -name cgroup.procs -o -name cgroup.subtree_control -o -name memory.max -o -name memory.limit_in_bytes -o -name release_agent \
  -o -name notify_on_release \) 2> /dev/null | sed 's/^/broke: /'
for o in memory rdma cpu none; do
  mkdir -p m && mount -t cgroup -o $o x m 2> /dev/null && echo "broke: mounted $o"
done
mount -t cgroup2 x m 2> /dev/null && echo "broke: mounted version 2"
grep -q cgroup /proc/mounts && echo "broke: mounts $(grep cgroup /proc/mounts)"
unshare -C true 2> /dev/null && echo "broke: new group namespace"
echo end
