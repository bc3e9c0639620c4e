// Package imagesource reads runtime images from where others keep them: an OCI layout, which is a folder or an archive
// of one; what docker save writes; an archive of a root file system; a registry. Each ends as a folder tree of package
// unpack, and each part is compared with the digest that names it while it is read.
//
// Of what an image says of itself only the environment is taken, and the platform. Whatever else it says (a command, a
// user, a working folder, volumes, ports) is about a machine that it was made for, and a run has its own.
package imagesource
