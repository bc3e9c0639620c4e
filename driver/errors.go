package driver

import "errors"

// ErrLeftBehind marks an error of Start after which something of the sandbox may still live.
var ErrLeftBehind = errors.New("something of the sandbox may be left")

// ErrReleased marks an error of Exec after which a part of the program may have run. It is dead.
var ErrReleased = errors.New("the code may have been released")

// ErrNoTemplates marks an error of Template that will not change: the driver has none for the language.
var ErrNoTemplates = errors.New("no templates")

// ErrNotRegular is returned by Sandbox.Open for a link, a device, a fifo or a socket.
var ErrNotRegular = errors.New("not a regular file")
