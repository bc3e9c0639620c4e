#!/bin/sh
# guestkernel.sh: prints a folder with a kernel for the guests of driver/microvm, for its tests: / where the package is installed,
# else one in the user's cache folder, into which the package of this Debian machine is unpacked; nothing is installed. Prints
# nothing where that cannot be: for an ordinary user without one, and where there is no apt.
set -eu
if ls /boot/vmlinuz-*-cloud-amd64 >/dev/null 2>&1; then
	echo /
	exit 0
fi
cache=${XDG_CACHE_HOME:-$HOME/.cache}/glovebox/guestkernel
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
	if [ -e "$cache/.whole" ]; then echo "$cache"; exit 0; fi
	echo "guestkernel.sh: no kernel for guests here: the tests that boot one are left out" >&2
	exit 0
fi
newest() { apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1; }
package=$(newest)
if [ -z "$package" ]; then
	apt-get -qq update >&2
	package=$(newest)
fi
[ -n "$package" ] || { echo "guestkernel.sh: apt knows no linux-image-cloud-amd64" >&2; exit 1; }
if [ "$(cat "$cache/.whole" 2>/dev/null)" != "$package" ]; then
	echo "guestkernel.sh: fetching $package" >&2
	rm -rf "$cache"
	mkdir -p "$cache"
	cd "$cache"
	fetch() { apt-get -qq -o APT::Sandbox::User= download "$package" >&2; }
	fetch || { apt-get -qq update >&2 && fetch; }
	dpkg-deb -x ./*.deb .
	rm ./*.deb
	echo "$package" >.whole
fi
echo "$cache"
