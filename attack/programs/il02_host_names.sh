# IL-01, IL-02, IL-03, IL-05, IL-08, IL-10, IL-12, IL-14: prints whatever may name the host, its users or its folders
[ "$(hostname)" = sandbox ] || exit 99
for f in /proc/self/mounts /proc/self/mountinfo /proc/self/mountstats /proc/mounts /proc/self/cgroup /proc/self/uid_map /proc/self/gid_map \
  /etc/hostname /etc/hosts /etc/resolv.conf /etc/machine-id /etc/passwd /etc/group /proc/sys/kernel/hostname /proc/sys/kernel/domainname \
  /proc/sys/kernel/random/boot_id /proc/cmdline /proc/net/arp /proc/net/route /proc/net/unix /proc/net/tcp /proc/net/udp /proc/net/dev \
  /proc/net/fib_trie /proc/net/snmp /proc/version /sys/class/dmi/id/product_serial /sys/class/net/eth0/address /proc/1/cgroup \
  /proc/1/mountinfo /proc/1/cmdline /proc/self/stat /proc/self/maps /proc/keys /proc/kallsyms /proc/modules; do
  echo "== $f"
  head -c 20000 "$f" 2>&1 | tr '\0' ' '
  echo
done
id
stat / /workspace /inputs /outputs /code /tmp
dmesg 2> /dev/null && echo "broke: the kernel's log"
head -c 1 /dev/kmsg 2> /dev/null && echo "broke: the kernel's log"
[ -s /proc/kmsg ] && echo "broke: the kernel's log"
[ -z "$(head -c 10 /proc/cmdline)" ] || echo "broke: the kernel's command line"
awk '$5 != "0000000000000000" && $1 ~ /[1-9a-f]/ { print "broke: kernel address " $0; exit }' /proc/kallsyms
echo end
