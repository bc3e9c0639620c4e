// Package hostside is what a driver takes from the host for a sandbox whose first process is glovebox-init: ids, that
// process in fresh namespaces, a file system on disk, control groups. It also says what the host refuses, why, and what
// mends that.
package hostside
