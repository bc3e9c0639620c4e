#!/bin/sh
# need.sh TOOL...: makes sure that each tool is on this machine. What is missing is installed with the system's package
# manager when root runs this; else the exact command is printed and the exit code is 1.
#
# Tools: python, node (where the runtime image looks for them, not in a person's home), pandas, mke2fs, newuidmap, bwrap, runc,
# cc, qemu, busybox, ip, curl, git, pytests (CPython's own tests).
set -eu

has() {
	case $1 in
	python) [ -x /usr/bin/python3 ] || [ -x /usr/local/bin/python3 ] ;;
	node) [ -x /usr/bin/node ] || [ -x /usr/local/bin/node ] || [ -x /usr/bin/nodejs ] ;;
	pytests) /usr/bin/python3 -c 'import test.test_fcntl' 2>/dev/null ;;
	pandas) /usr/bin/python3 -c 'import pandas' 2>/dev/null ;;
	qemu) [ -x /usr/bin/qemu-system-x86_64 ] ;;
	busybox | mke2fs | newuidmap | bwrap | runc | cc | ip | curl | git) PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1 ;;
	*) echo "need.sh: unknown tool $1" >&2; exit 2 ;;
	esac
}

# package MANAGER TOOL: what the tool's package is called there.
package() {
	case $1:$2 in
	pacman:python) echo python ;;
	*:python) echo python3 ;;
	*:node) echo nodejs ;;
	apt-get:pytests) echo "lib$(basename "$(readlink -f /usr/bin/python3)")-testsuite" ;;
	dnf:pytests) echo python3-test ;;
	apk:pytests) echo python3-tests ;;
	*:pytests) echo python ;;
	apk:pandas) echo py3-pandas ;;
	pacman:pandas) echo python-pandas ;;
	*:pandas) echo python3-pandas ;;
	*:mke2fs) echo e2fsprogs ;;
	apt-get:newuidmap) echo uidmap ;;
	dnf:newuidmap) echo shadow-utils ;;
	apk:newuidmap) echo shadow-uidmap ;;
	*:newuidmap) echo shadow ;;
	*:bwrap) echo bubblewrap ;;
	apt-get:qemu) echo qemu-system-x86 ;;
	dnf:qemu) echo qemu-system-x86-core ;;
	apk:qemu) echo qemu-system-x86_64 ;;
	*:qemu) echo qemu-system-x86 ;;
	apt-get:busybox) echo busybox-static ;;
	*:busybox) echo busybox ;;
	*:runc) echo runc ;;
	dnf:ip) echo iproute ;;
	*:ip) echo iproute2 ;;
	*:curl) echo curl ;;
	*:git) echo git ;;
	apk:cc) echo gcc musl-dev ;;
	apt-get:cc) echo gcc libc6-dev ;;
	*:cc) echo gcc ;;
	esac
}

missing=
for tool in "$@"; do
	has "$tool" || missing="$missing $tool"
done
[ -n "$missing" ] || exit 0

manager=
for m in apt-get dnf apk pacman; do
	if command -v "$m" >/dev/null 2>&1; then manager=$m; break; fi
done
if [ -z "$manager" ]; then
	echo "need.sh: missing:$missing; install them with this system's package manager" >&2
	exit 1
fi

packages=
for tool in $missing; do
	packages="$packages $(package "$manager" "$tool")"
done
case $manager in
apt-get) install="apt-get install -y --no-install-recommends$packages" ;;
dnf) install="dnf install -y$packages" ;;
apk) install="apk add$packages" ;;
pacman) install="pacman -S --noconfirm --needed$packages" ;;
esac

if [ "$(id -u)" != 0 ]; then
	echo "need.sh: missing:$missing; run as root: $install" >&2
	exit 1
fi
echo "need.sh: missing:$missing; running: $install" >&2
export DEBIAN_FRONTEND=noninteractive
# The package lists may be absent or stale, as on a new container: fetch them only if the first try fails.
$install >&2 || case $manager in
apt-get) apt-get update >&2 && $install >&2 ;;
apk) apk update >&2 && $install >&2 ;;
pacman) pacman -Sy --noconfirm >&2 && $install >&2 ;;
*) false ;;
esac
for tool in $missing; do
	has "$tool" || { echo "need.sh: $tool is still missing after: $install" >&2; exit 1; }
done
