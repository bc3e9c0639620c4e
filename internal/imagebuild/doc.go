// Package imagebuild builds runtime images from packages, in two steps.
//
// Fetch: the distribution's, Python's and Node's own tools find and fetch packages, each from where this machine's
// configuration of it says, into a folder of their own and as a user who owns nothing else. They check signatures and
// hashes; nothing that was fetched is executed. What was fetched is compared with the lock file, or written to one.
//
// Assemble: Debian packages are installed with their scripts, as root of a kernel of its own without a network (see
// driver/gvisor). Wheels, Node modules and files are laid over that by package unpack, which executes nothing.
package imagebuild
