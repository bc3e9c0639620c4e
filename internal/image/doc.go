// Package image describes runtime images: what a program sees as its file system.
//
// There is one so far, host: the operating system that Glovebox itself runs on, reduced to what a program needs. Its
// folder of programs and libraries (/usr) is shown read-only, everything that belongs to a person or to this machine is
// absent (/home, /root, /var, /run, /sys, /boot, /opt, /srv, /mnt), and /etc is made anew from a few synthetic files and an
// explicit list of harmless ones (see allowed).
//
// An image is described, never built: looking at a host costs some hundred stat calls and starts no program.
package image
