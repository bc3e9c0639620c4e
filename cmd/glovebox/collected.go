package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"glovebox"
	"glovebox/internal/output"
)

// destination is the folder of --output, opened before the run and filled after it. It is the same folder throughout,
// whatever becomes of its name meanwhile.
type destination struct {
	root      *os.Root
	name      string
	made      bool
	overwrite bool
}

// openDestination makes or opens the folder and refuses one that holds anything, unless that may be replaced. The caller
// closes it.
func openDestination(name string, overwrite bool) (*destination, error) {
	d := &destination{name: name, overwrite: overwrite}
	info, err := os.Stat(name)
	if err == nil && !info.IsDir() {
		return nil, d.failed(syscall.ENOTDIR)
	}
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(name, 0o755); err != nil {
			return nil, d.failed(err)
		}
		d.made = true
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, d.failed(err)
	}
	d.root = root
	if overwrite {
		return d, nil
	}
	folder, err := root.Open(".")
	if err != nil {
		root.Close()
		return nil, d.failed(err)
	}
	defer folder.Close()
	if names, _ := folder.Readdirnames(1); len(names) > 0 {
		root.Close()
		return nil, glovebox.Errorf(glovebox.CodeConflict, "name an empty or new folder, or add --overwrite",
			"the folder of --output, %q, is not empty", short(name))
	}
	return d, nil
}

// failed says why the folder cannot be used.
func (d *destination) failed(err error) error {
	var cause syscall.Errno
	if !errors.As(err, &cause) {
		return glovebox.Internal("open the folder of --output", err)
	}
	return glovebox.Errorf(glovebox.CodeInvalid, "name a folder that you may write, or a new one",
		"cannot use %q for --output: %s", short(d.name), cause.Error())
}

// fill copies artifacts of a run into the folder. It stops at the first that fails, and when ctx ends; then what it returns
// is an *unfilled.
func (d *destination) fill(ctx context.Context, s glovebox.Service, who glovebox.Principal, run string,
	artifacts []glovebox.Artifact) error {
	for n, art := range artifacts {
		err := ctx.Err()
		if err == nil {
			err = d.place(ctx, s, who, run, art.Path)
		}
		if err != nil && ctx.Err() != nil {
			return &unfilled{run: run, copied: n, of: len(artifacts)}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// unfilled is the end of a copy that was cancelled.
type unfilled struct {
	run        string
	copied, of int
}

func (u *unfilled) Error() string {
	return fmt.Sprintf("cancelled: %d of %d outputs were copied; all of them are kept with the run, %s", u.copied, u.of, u.run)
}

func (d *destination) place(ctx context.Context, s glovebox.Service, who glovebox.Principal, run, path string) error {
	r, err := s.Artifact(ctx, who, run, path)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := output.Place(ctx, d.root, path, d.overwrite, r); err != nil {
		code := glovebox.CodeInternal
		var known *glovebox.Error
		if errors.As(err, &known) && known.Code == glovebox.CodeConflict { // another run may have filled the folder meanwhile
			code = known.Code
		}
		return &glovebox.Error{Code: code, Op: "place output", Err: err,
			Public: fmt.Sprintf("the program ended, but its output %q cannot be put into the folder of --output", short(path)),
			Fix:    "fetch them into another folder: glovebox trace show " + run + " --output DIR"}
	}
	return nil
}

// drop closes the folder. If the run never came to be, a folder that was made for it goes again.
func (d *destination) drop(ran bool) {
	if d == nil {
		return
	}
	d.root.Close()
	if d.made && !ran {
		os.Remove(d.name)
	}
}
