#!/bin/sh
# cgroup2.sh: runs the tests of control groups on a kernel that has version 2 alone, as nearly every machine does today, and
# on which systemd is pid 1. It needs neither KVM nor a mount: QEMU emulates the machine, which is slow (20 times and more).
#
# What it fetches, with apt, from where this Debian machine gets its packages, and unpacks without installing anything:
# QEMU (unless qemu-system-x86_64 is here), the cloud kernel, and for the guest systemd, D-Bus, Python and what the tests
# call. About 100 MB, kept in the user's cache folder; GLOVEBOX_CGROUP2_CACHE names another.
#
#   cgroup2.sh [PATTERNS]     only the parts of cgroup2_guest.sh whose names match one of the shell patterns
set -eu
cd "$(dirname "$0")/.."
cache=${GLOVEBOX_CGROUP2_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/glovebox/cgroup2}
parts=${1:-*}

fail() { echo "cgroup2.sh: $*" >&2; exit 1; }
for tool in apt-get dpkg-deb mke2fs go; do
	PATH="$PATH:/usr/sbin:/sbin" command -v $tool >/dev/null 2>&1 || fail "needs $tool (a Debian machine with Go)"
done
[ "$(id -u)" = 0 ] || fail "run it as root: the files of the guest must be root's"
PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$cache"

# unpack FOLDER PACKAGE...: the packages and all that they depend on, as if nothing were installed.
unpack() {
	to=$1; shift
	stamp=$to/.packages
	[ "$(cat "$stamp" 2>/dev/null)" != "$*" ] || return 0
	echo "cgroup2.sh: fetching into $to: $*" >&2
	rm -rf "$to" "$to.debs"; mkdir -p "$to" "$to.debs/partial"; : >"$to.status"
	apt-get -qq -y -o Dir::State::status="$to.status" -o Dir::Cache::archives="$to.debs" -o Debug::NoLocking=1 \
		-o APT::Sandbox::User= -o APT::Install-Recommends=false --download-only install "$@" >&2
	for dir in bin sbin lib lib64; do mkdir -p "$to/usr/$dir"; ln -s "usr/$dir" "$to/$dir"; done
	for deb in "$to.debs"/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -C "$to" --keep-directory-symlink -xf -; done
	rm -rf "$to.debs" "$to.status"
	echo "$*" >"$stamp"
}

qemu=$(command -v qemu-system-x86_64 || true)
if [ -z "$qemu" ]; then
	unpack "$cache/qemu" qemu-system-x86 seabios
	q=$cache/qemu
	export QEMU_MODULE_DIR="$q/usr/lib/x86_64-linux-gnu/qemu"
	qemu="$q/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 --library-path $q/usr/lib/x86_64-linux-gnu:$q/lib/x86_64-linux-gnu
		$q/usr/bin/qemu-system-x86_64 -L $q/usr/share/qemu -L $q/usr/share/seabios"
fi

kernel=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
[ -n "$kernel" ] || fail "apt knows no linux-image-cloud-amd64: apt-get update"
version=${kernel#linux-image-}
if [ ! -e "$cache/kernel/boot/vmlinuz-$version" ]; then
	echo "cgroup2.sh: fetching $kernel" >&2
	rm -rf "$cache/kernel"; mkdir -p "$cache/kernel"
	(cd "$cache/kernel" && apt-get -qq -o APT::Sandbox::User= download "$kernel" >&2 && dpkg-deb -x ./*.deb . && rm ./*.deb)
fi

# The guest: pid 1 is systemd; an account "tester" with subordinate ids.
root=$cache/root
unpack "$root" systemd systemd-sysv dbus dbus-user-session libpam-systemd libpam-modules libpam-runtime python3 uidmap \
	e2fsprogs util-linux kmod procps coreutils findutils grep sed gawk bash dash passwd login base-files
cd "$root"
mkdir -p proc sys dev run tmp mnt root home/tester etc/systemd/system var/lib/dpkg
chmod 1777 tmp
ln -sf gawk usr/bin/awk
cat >etc/passwd <<-END
	root:x:0:0:root:/root:/bin/sh
	nobody:x:65534:65534:nobody:/nonexistent:/bin/sh
	messagebus:x:101:101::/nonexistent:/bin/sh
	tester:x:1000:1000::/home/tester:/bin/sh
END
sed 's/^\([a-z]*\):x:\([0-9]*\):.*/\1:x:\2:/' etc/passwd >etc/group
echo tester:100000:65536 | tee etc/subuid >etc/subgid
echo 'passwd: files' >etc/nsswitch.conf
echo glovebox >etc/hostname
echo 0123456789abcdef0123456789abcdef >etc/machine-id
for kind in auth account password session session-noninteractive; do
	echo "${kind%-*} required pam_permit.so" >"etc/pam.d/common-$kind"
done
printf '%s\n' 'auth required pam_permit.so' 'account required pam_permit.so' 'session required pam_systemd.so' >etc/pam.d/glovebox
cat >etc/systemd/system/glovebox.service <<-END
	[Unit]
	After=dbus.socket systemd-logind.service
	Requires=dbus.socket
	[Service]
	Type=oneshot
	ExecStart=/bin/sh -c 'mount -o ro /dev/nvme1n1 /mnt && exec sh /mnt/guest.sh'
	ExecStopPost=/bin/systemctl poweroff -ff
	StandardOutput=tty
	StandardError=tty
	TTYPath=/dev/ttyS0
	TimeoutStartSec=infinity
END
for module in drivers/block/loop fs/overlayfs/overlay; do
	install -D -m 644 -t "usr/lib/modules/$version" "$cache/kernel/lib/modules/$version/kernel/$module.ko"
done
cd - >/dev/null
chown 1000:1000 "$root/home/tester"
rm -f "$cache/root.img"
mke2fs -q -t ext4 -O ^has_journal -d "$root" "$cache/root.img" 1G

# What is tested: programs and tests of this tree.
disk=$cache/tests
rm -rf "$disk" "$disk.img"; mkdir -p "$disk"
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$disk/" ./cmd/... ./driver/drivertest/probe
for package in internal/cgroup driver/process; do
	name=$(basename $package)
	CGO_ENABLED=0 go test -c -ldflags '-s -w' -o "$disk/$name.test" ./$package
	mkdir "$disk/$name"
	[ ! -d $package/testdata ] || cp -r $package/testdata "$disk/$name/"
done
cp scripts/cgroup2_guest.sh "$disk/guest.sh"
printf '%s\n' "$parts" >"$disk/parts"
mke2fs -q -t ext4 -O ^has_journal -d "$disk" "$disk.img" 256M

# no_timer_check: a busy machine that emulates may miss the moments at which the kernel looks whether its timer works.
log=$cache/last.log
echo "cgroup2.sh: $version under emulation; the log is $log" >&2
timeout 7200 $qemu -M q35 -accel tcg,thread=multi -cpu max,la57=off -smp 2 -m 3G -nodefaults -no-user-config -display none \
	-no-reboot -serial stdio -kernel "$cache/kernel/boot/vmlinuz-$version" \
	-append "console=ttyS0 quiet loglevel=3 panic=-1 cryptomgr.notests no_timer_check mitigations=off root=/dev/nvme0n1 rw
		systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all systemd.unit=glovebox.service systemd.show_status=0" \
	-drive "if=none,id=d0,format=raw,snapshot=on,file=$cache/root.img" -device nvme,drive=d0,serial=root \
	-drive "if=none,id=d1,format=raw,readonly=on,file=$disk.img" -device nvme,drive=d1,serial=tests </dev/null | tee "$log"
grep -q '^cgroup2: all passed' "$log" || fail "not everything passed"
