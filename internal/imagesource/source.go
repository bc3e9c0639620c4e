package imagesource

import (
	"bufio"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/klauspost/compress/zstd"

	"glovebox"
	"glovebox/internal/image"
	"glovebox/internal/unpack"
)

// Config says what may be asked.
type Config struct {
	// Platform is such as linux/amd64. Required.
	Platform string
	// Hosts are asked besides the registry that a source names, as host or host:port: for its tokens and where it keeps its
	// layers. Nothing else is.
	Hosts []string
	// PlainHTTP allows a registry without TLS.
	PlainHTTP bool
	// Transport does the asking; nil means one that goes to each host directly.
	Transport http.RoundTripper
	// Proxy is that of such a transport; nil means none.
	Proxy func(*http.Request) (*url.URL, error)
}

const registryScheme = "docker://"

// Name is what an image from source may be called when nobody says: its last part, without suffix or tag.
func Name(source string) string {
	name := source
	if rest, ok := strings.CutPrefix(source, registryScheme); ok {
		name, _, _ = strings.Cut(rest, "@")
		name = name[strings.LastIndexByte(name, '/')+1:]
		name, _, _ = strings.Cut(name, ":")
	} else {
		name = filepath.Base(filepath.Clean(source))
		for _, suffix := range []string{".gz", ".tgz", ".zst", ".bz2", ".tar"} {
			name = strings.TrimSuffix(name, suffix)
		}
	}
	return strings.ToLower(name)
}

// Import fills a tree from a source: a path, or docker://HOST/NAME:TAG. work is a folder for what is needed meanwhile.
// What is wrong with the source is a *glovebox.Error.
func Import(ctx context.Context, cfg Config, source string, tree *unpack.Tree, work string) (image.Settings, error) {
	var img *packed
	var done func() error
	var err error
	if rest, ok := strings.CutPrefix(source, registryScheme); ok {
		img, done, err = pull(ctx, cfg, rest)
	} else {
		img, done, err = open(ctx, cfg, source, work, int64(tree.Most()))
	}
	if done != nil {
		defer done() // what was only read has nothing left to fail
	}
	if err != nil {
		return image.Settings{}, err
	}
	return img.unpack(ctx, tree)
}

// open opens what a path names. most bounds what its archive may hold: layers hold no less than what they are made of.
func open(ctx context.Context, cfg Config, name, work string, most int64) (_ *packed, done func() error, err error) {
	// A fifo must not make it wait.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, unreadable(name, err)
	}
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, f.Close, unreadable(name, err)
	case info.IsDir():
		f.Close()
		return openFolder(cfg, name)
	case !info.Mode().IsRegular():
		return nil, f.Close, glovebox.Errorf(glovebox.CodeInvalid, "name a file, a folder or docker://HOST/NAME:TAG",
			"%.200q is neither a file nor a folder", name)
	}
	kept, err := keepsLayers(ctx, f, most)
	if err != nil {
		return nil, f.Close, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, f.Close, err
	}
	if !kept { // a root file system
		return &packed{layers: []layer{{open: func() (io.ReadCloser, error) { return f, nil }}}}, f.Close, nil
	}
	plain, err := plainFile(ctx, f, work, most)
	if err != nil {
		return nil, f.Close, err
	}
	done = func() error { return errors.Join(plain.Close(), f.Close()) }
	blobs, err := indexArchive(plain)
	if err != nil {
		return nil, done, err
	}
	img, err := openBlobs(cfg, blobs)
	return img, done, err
}

func unreadable(name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return glovebox.Errorf(glovebox.CodeNotFound,
			"name a file or folder that exists, or say docker://HOST/NAME:TAG for a registry",
			"there is no %.200q", name)
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		err = errno
	}
	return glovebox.Errorf(glovebox.CodeInvalid, "name a file or folder that you may read", "cannot read %.200q: %s", name, err)
}

// maxWindow bounds the memory that one reader of zstd may take.
const maxWindow = 128 << 20

// decompress reads what a stream holds, whatever it is compressed with.
func decompress(from io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(from, 64<<10)
	head, err := b.Peek(6)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch h := string(head); {
	case strings.HasPrefix(h, "\x1f\x8b"):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, damaged("it begins as gzip and is none")
		}
		return z, nil
	case strings.HasPrefix(h, "\x28\xb5\x2f\xfd"):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, damaged("it begins as zstd and is none")
		}
		return z.IOReadCloser(), nil
	case strings.HasPrefix(h, "BZh"):
		return io.NopCloser(bzip2.NewReader(b)), nil
	case strings.HasPrefix(h, "\xfd7zXZ"):
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "unpack it first: xz -d",
			"the archive is compressed with xz, which is not read")
	}
	return io.NopCloser(b), nil
}

func damaged(format string, args ...any) error {
	return glovebox.Errorf(glovebox.CodeInvalid, "make or fetch it again", "the image is damaged: %s",
		fmt.Sprintf(format, args...))
}

// plainFile is f itself, or a copy of it in work that is not compressed.
func plainFile(ctx context.Context, f *os.File, work string, most int64) (*os.File, error) {
	from, err := decompress(&interruptible{ctx, f})
	if err != nil {
		return nil, err
	}
	defer from.Close()
	plain, err := os.Create(filepath.Join(work, "archive.tar"))
	if err != nil {
		return nil, err
	}
	n, err := io.Copy(plain, io.LimitReader(from, most+1))
	if err == nil && n > most {
		err = glovebox.Errorf(glovebox.CodeInvalid, "import something smaller, or raise images.max_size in glovebox.yaml",
			"the archive holds more than %v", glovebox.Size(most))
	}
	if err != nil {
		return nil, errors.Join(err, plain.Close())
	}
	return plain, nil
}

// interruptible ends a stream when a context does.
type interruptible struct {
	ctx  context.Context
	from io.Reader
}

func (i *interruptible) Read(p []byte) (int, error) {
	if i.ctx.Err() != nil {
		return 0, context.Cause(i.ctx)
	}
	return i.from.Read(p)
}
