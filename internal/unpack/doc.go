// Package unpack turns archives that nobody vouches for into a folder tree.
//
// A [Tree] is filled from tar streams, one layer over the other, and knows in memory everything it holds: what a name in an
// archive leads to is decided there and never asked of the disk. So no link is ever followed on the host. A name that leads
// through a link of the tree ends up where a program would find it whose root folder the tree is; one that climbs with ".."
// is refused.
//
// What a tree never holds: device nodes, fifos, sockets, extended attributes (which carry capabilities of files), owners,
// and the set-user-id, set-group-id and sticky bits. What was left out is counted, so that it can be told. Files have mode
// 0444, or 0555 where the archive lets anybody execute them; folders have 0555 once the tree is finished. Symbolic links are
// kept whatever they point to.
package unpack
