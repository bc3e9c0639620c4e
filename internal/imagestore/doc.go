// Package imagestore keeps runtime images that were unpacked, for all processes of one user on one data_dir.
//
//	DIR/names/NAME            the digest that a name stands for
//	DIR/sha256-HEX/manifest   all that the image holds and says, in one canonical text: its SHA-256 is the digest
//	               seal       device, inode, size and change time of all of the tree, hashed
//	               about      when and from what it was made
//	               tree/      the files, read-only also to their owner
//	DIR/making-*              what is being made or removed, locked by whoever does it
//
// An image appears whole, by one rename, and disappears so. Whoever uses one has its folder locked for sharing; it is only
// removed by whoever has it alone. What a process that died was making is removed by the next one that makes anything.
//
// The bytes are checked when an image is made, and by Verify. Each Use compares the seal, which costs one look at every name
// and reads no file: a file that was written to, replaced, added, removed or mounted over since is seen, and what the disk
// itself lost is not.
package imagestore
