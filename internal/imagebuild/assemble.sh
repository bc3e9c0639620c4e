# Installs the packages in /inputs/debs, which begin with nothing, into a folder, and leaves an archive of it. It runs as root of
# a kernel of its own without a network, with the programs of the host's image: dpkg, tar, chroot and mount.
set -eu
root=/build/root
umask 022
mkdir -p $root/usr/bin $root/usr/sbin $root/usr/lib $root/usr/lib64
for dir in bin sbin lib lib64; do ln -s usr/$dir $root/$dir; done

debs() { while read -r name; do printf '/debs/%s\n' "$name"; done < "/inputs/$1"; }

echo "==> unpacking what everything needs"
debs essential | while read -r deb; do
	dpkg-deb --fsys-tarfile "/inputs$deb" | tar -x -C $root --keep-directory-symlink -p
done
mkdir -p $root/debs $root/proc $root/dev $root/tmp $root/var/lib/dpkg/info
mount --bind /inputs/debs $root/debs
mount -t proc proc $root/proc
mount --bind /dev $root/dev
: > $root/var/lib/dpkg/status
: > $root/var/lib/dpkg/available
# No service is started while packages are installed.
printf '#!/bin/sh\nexit 101\n' > $root/usr/sbin/policy-rc.d
chmod 755 $root/usr/sbin/policy-rc.d

install() {
	chroot $root dpkg --force-depends --force-unsafe-io --force-confold \
		--path-exclude='/usr/share/man/*' --path-exclude='/usr/share/info/*' --path-exclude='/usr/share/doc/*' \
		--path-include='/usr/share/doc/*/copyright' --path-exclude='/usr/share/locale/*' --install "$@"
}
echo "==> installing base-passwd"
install $(debs essential | grep /base-passwd_)
echo "==> installing what everything needs"
install $(debs essential)
if [ -s /inputs/others ]; then
	echo "==> installing packages"
	install $(debs others)
fi
chroot $root dpkg --configure -a
if [ -n "$(chroot $root dpkg --audit)" ]; then
	chroot $root dpkg --audit
	exit 1
fi

umount $root/dev $root/proc $root/debs
rmdir $root/debs
rm -rf $root/usr/sbin/policy-rc.d $root/var/cache/* $root/var/log/* $root/var/lib/apt/lists/* $root/tmp/* \
	$root/var/lib/dpkg/*-old $root/var/cache/debconf/*-old
echo "==> packing"
tar -C $root --sort=name --numeric-owner -cf /outputs/image.tar .
