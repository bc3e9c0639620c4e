package unpack

import (
	"archive/tar"
	"context"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"
)

// Pack writes a folder as an archive: its folders, regular files and symbolic links, each beneath prefix. It follows no link
// and fails at anything else.
func Pack(ctx context.Context, to io.Writer, root *os.Root, prefix string) error {
	w := tar.NewWriter(to)
	err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || name == "." {
			return err
		}
		return packOne(w, root, name, path.Join(prefix, name), d)
	})
	if err != nil {
		return err
	}
	return w.Close()
}

func packOne(w *tar.Writer, root *os.Root, name, as string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	target := ""
	if info.Mode().Type() == fs.ModeSymlink {
		if target, err = root.Readlink(name); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name, h.Uid, h.Gid, h.Uname, h.Gname, h.Format = as, 0, 0, "", "", tar.FormatPAX
	if err := w.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}
