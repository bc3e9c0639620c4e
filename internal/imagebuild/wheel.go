package imagebuild

import (
	"archive/tar"
	"archive/zip"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"strings"
	"sync"
	"syscall"

	"glovebox"
)

func unique() string { return rand.Text() }

// ownFolder refuses a folder that others than this user may change.
func ownFolder(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return glovebox.Internal("look at the folder to fetch into", err)
	}
	st := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || int(st.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return glovebox.Errorf(glovebox.CodeUnavailable, "remove "+dir+" (it is made anew) or let root do it",
			"the folder to fetch packages into is not the calling user's own")
	}
	return nil
}

// maxWheel bounds what one wheel's small files may have.
const maxPoints = 1 << 20

// packWheel writes what a wheel holds as an archive, each file where an installer would have put it. Nothing is executed.
func packWheel(to io.Writer, name, site string) error {
	z, err := zip.OpenReader(name)
	if err != nil {
		return glovebox.Errorf(glovebox.CodeInvalid, "fetch it again", "a wheel is damaged: %.100q", path.Base(name))
	}
	defer z.Close()
	w := tar.NewWriter(to)
	for _, f := range z.File {
		at, executable := placeOf(f.Name, site)
		if at == "" || strings.HasSuffix(f.Name, "/") {
			continue
		}
		if err := packZipped(w, f, at, executable); err != nil {
			return err
		}
		if strings.HasSuffix(f.Name, ".dist-info/entry_points.txt") {
			if err := packPrograms(w, f); err != nil {
				return err
			}
		}
	}
	return w.Close()
}

// placeOf is where a file of a wheel belongs; empty: nowhere.
func placeOf(name, site string) (at string, executable bool) {
	first, rest, _ := strings.Cut(name, "/")
	if !strings.HasSuffix(first, ".data") {
		return site + "/" + name, false
	}
	kind, rest, _ := strings.Cut(rest, "/")
	switch kind {
	case "purelib", "platlib":
		return site + "/" + rest, false
	case "data":
		return "/usr/local/" + rest, false
	case "scripts":
		return "/usr/local/bin/" + rest, true
	}
	return "", false
}

func packZipped(w *tar.Writer, f *zip.File, at string, executable bool) error {
	h := &tar.Header{Name: at, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(f.UncompressedSize64),
		ModTime: f.Modified, Format: tar.FormatPAX}
	if executable || f.Mode()&0o111 != 0 {
		h.Mode = 0o755
	}
	if !f.Mode().IsRegular() {
		return glovebox.Errorf(glovebox.CodeInvalid, "leave the package out", "a wheel has %.120q, which is no file", f.Name)
	}
	from, err := f.Open()
	if err != nil {
		return err
	}
	defer from.Close()
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(w, from)
	return err
}

var point = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]{0,100})\s*=\s*` +
		`([A-Za-z_][A-Za-z0-9_.]*)\s*:\s*([A-Za-z_][A-Za-z0-9_.]*)\s*(\[.*\])?$`)
})

// packPrograms writes the programs that a wheel says it has.
func packPrograms(w *tar.Writer, f *zip.File) error {
	from, err := f.Open()
	if err != nil {
		return err
	}
	defer from.Close()
	text, err := io.ReadAll(io.LimitReader(from, maxPoints))
	if err != nil {
		return err
	}
	section := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = line
			continue
		}
		m := point().FindStringSubmatch(line)
		if section != "[console_scripts]" || m == nil {
			continue
		}
		top, _, _ := strings.Cut(m[3], ".")
		program := fmt.Sprintf("#!/usr/bin/env python3\nimport sys\nfrom %s import %s\nsys.exit(%s())\n", m[2], top, m[3])
		err := w.WriteHeader(&tar.Header{Name: "/usr/local/bin/" + m[1], Typeflag: tar.TypeReg, Mode: 0o755,
			Size: int64(len(program))})
		if _, e := io.WriteString(w, program); err != nil || e != nil {
			return errors.Join(err, e)
		}
	}
	return nil
}
