package imagesource

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"glovebox"
)

// blobs are the files that hold an image: a folder, or an archive of one. Names have slashes.
type blobs interface {
	// open opens a regular file of them. What is not there is fs.ErrNotExist.
	open(name string) (io.ReadCloser, int64, error)
}

// folderBlobs are those of a folder, which no link leads out of.
type folderBlobs struct{ root *os.Root }

func (b folderBlobs) open(name string) (io.ReadCloser, int64, error) {
	f, err := b.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// archiveBlobs are those of an archive that is not compressed.
type archiveBlobs struct {
	from  io.ReaderAt
	files map[string]piece
	links map[string]string
}

type piece struct{ at, size int64 }

func (b *archiveBlobs) open(name string) (io.ReadCloser, int64, error) {
	name = path.Clean(name)
	if to, ok := b.links[name]; ok { // as docker save has had for layers that two images share
		name = path.Join(path.Dir(name), to)
	}
	p, ok := b.files[name]
	if !ok {
		return nil, 0, fs.ErrNotExist
	}
	return io.NopCloser(io.NewSectionReader(b.from, p.at, p.size)), p.size, nil
}

// maxFiles bounds the files of an archive of layers.
const maxFiles = 20_000

// indexArchive notes where the files of an archive are.
func indexArchive(f *os.File) (*archiveBlobs, error) {
	b := &archiveBlobs{from: f, files: map[string]piece{}, links: map[string]string{}}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	archive := tar.NewReader(f)
	for n := 0; ; n++ {
		h, err := archive.Next()
		if err == io.EOF {
			return b, nil
		}
		if err != nil || n > maxFiles {
			return nil, damaged("its archive cannot be read")
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeSymlink:
			b.links[name] = h.Linkname
		case tar.TypeReg:
			// A reader of archives has read no further than to where the file begins.
			at, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			b.files[name] = piece{at, h.Size}
		}
	}
}

// layerNames are what an archive of layers holds at its top.
var layerNames = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(manifest\.json|repositories|oci-layout|index\.json|blobs(/.*)?|` +
		`(sha256:)?[0-9a-f]{64}(\.json|\.tar|\.tar\.gz|/.*)?)$`)
})

// keepsLayers tells an archive of layers from one of a root file system: by its names, up to the first that only the latter
// has, and within so many bytes.
func keepsLayers(ctx context.Context, f io.Reader, most int64) (bool, error) {
	from, err := decompress(&interruptible{ctx, f})
	if err != nil {
		return false, err
	}
	defer from.Close()
	archive, some := tar.NewReader(io.LimitReader(from, most)), false
	for range maxFiles {
		h, err := archive.Next()
		switch {
		case err == io.EOF:
			return some, nil
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case err != nil:
			return false, glovebox.Errorf(glovebox.CodeInvalid, "name an archive (tar, also compressed) or a folder of an OCI layout",
				"the file is damaged, or it is no archive")
		}
		name := path.Clean(h.Name)
		if name == "." {
			continue
		}
		if !layerNames().MatchString(name) {
			return false, nil
		}
		some = some || name == "manifest.json" || name == "index.json"
	}
	return some, nil
}

// openFolder opens an OCI layout.
func openFolder(cfg Config, name string) (*packed, func() error, error) {
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, nil, unreadable(name, err)
	}
	if _, err := root.Stat("index.json"); err != nil {
		return nil, root.Close, glovebox.Errorf(glovebox.CodeInvalid,
			"pack a root file system first: tar -C FOLDER -cf image.tar .",
			"the folder %.200q is no OCI layout: it has no index.json", name)
	}
	img, err := openBlobs(cfg, folderBlobs{root})
	return img, root.Close, err
}

// openBlobs opens the image that blobs hold. That of docker save may be an OCI layout too, and is then read as one.
func openBlobs(cfg Config, b blobs) (*packed, error) {
	var index v1.IndexManifest
	err := document(b, "index.json", "", &index)
	if errors.Is(err, fs.ErrNotExist) {
		return openSaved(cfg, b)
	}
	if err != nil {
		return nil, err
	}
	manifest, err := choose(cfg, b, &index, 0)
	if err != nil {
		return nil, err
	}
	return openManifest(cfg, b, manifest)
}

// document reads a JSON file of blobs, whose digest is checked if there is one.
func document(b blobs, name, digest string, into any) error {
	f, size, err := b.open(name)
	if err != nil {
		if digest != "" && errors.Is(err, fs.ErrNotExist) {
			return damaged("its part %.19s… is missing", digest)
		}
		return err
	}
	defer f.Close()
	if size > maxDocument {
		return damaged("its %.80q has %d bytes", name, size)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxDocument))
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	if digest != "" && "sha256:"+hex.EncodeToString(sum[:]) != digest {
		return damaged("its part %.19s… has another digest", digest)
	}
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(into); err != nil {
		return damaged("its %.80q is not what it should be", name)
	}
	return nil
}

// blobName is where a layout keeps a part.
func blobName(h v1.Hash) (string, error) {
	if _, err := hex.DecodeString(h.Hex); err != nil || h.Algorithm != "sha256" || len(h.Hex) != 64 {
		return "", damaged("a digest in it is no SHA-256")
	}
	return "blobs/sha256/" + h.Hex, nil
}

// maxNesting bounds indexes of indexes, which may lead to themselves in nothing but a forgery.
const maxNesting = 4

// choose finds the manifest of the one image in an index that is for the platform.
func choose(cfg Config, b blobs, index *v1.IndexManifest, depth int) (*v1.Manifest, error) {
	if depth > maxNesting {
		return nil, damaged("its indexes are nested too deep")
	}
	var fitting []v1.Descriptor
	var others []string
	for _, d := range index.Manifests {
		if d.Annotations["vnd.docker.reference.type"] != "" { // a signed statement about another
			continue
		}
		if p := d.Platform; p != nil && p.OS+"/"+p.Architecture != cfg.Platform {
			others = append(others, p.OS+"/"+p.Architecture)
			continue
		}
		fitting = append(fitting, d)
	}
	switch {
	case len(fitting) == 0 && len(others) > 0:
		slices.Sort(others)
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "say --platform with one of them, or import another image",
			"the image is for %.200s, and %s is wanted", strings.Join(slices.Compact(others), ", "), cfg.Platform)
	case len(fitting) != 1:
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "make one with the image that you want alone",
			"the layout holds %d images for %s", len(fitting), cfg.Platform)
	}
	name, err := blobName(fitting[0].Digest)
	if err != nil {
		return nil, err
	}
	if fitting[0].MediaType.IsIndex() {
		var next v1.IndexManifest
		if err := document(b, name, fitting[0].Digest.String(), &next); err != nil {
			return nil, err
		}
		return choose(cfg, b, &next, depth+1)
	}
	var m v1.Manifest
	return &m, document(b, name, fitting[0].Digest.String(), &m)
}

// openManifest opens the image of a manifest.
func openManifest(cfg Config, b blobs, m *v1.Manifest) (*packed, error) {
	name, err := blobName(m.Config.Digest)
	if err != nil {
		return nil, err
	}
	img := &packed{config: &v1.ConfigFile{}}
	if err := document(b, name, m.Config.Digest.String(), img.config); err != nil {
		return nil, err
	}
	if err := fits(cfg, img.config, len(m.Layers)); err != nil {
		return nil, err
	}
	for i, d := range m.Layers {
		if d.MediaType == types.OCIUncompressedRestrictedLayer || d.MediaType == types.DockerForeignLayer || len(d.URLs) > 0 {
			return nil, glovebox.Errorf(glovebox.CodeInvalid, "import one that brings all its layers",
				"layer %d of the image is not part of it", i+1)
		}
		at, err := blobName(d.Digest)
		if err != nil {
			return nil, err
		}
		img.layers = append(img.layers, layer{digest: d.Digest.String(), plain: img.config.RootFS.DiffIDs[i].String(),
			open: func() (io.ReadCloser, error) { return openLayer(b, at) }})
	}
	return img, nil
}

func openLayer(b blobs, name string) (io.ReadCloser, error) {
	f, _, err := b.open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, damaged("a layer of it is missing")
	}
	return f, err
}

// openSaved opens what docker save has written.
func openSaved(cfg Config, b blobs) (*packed, error) {
	var list []struct {
		Config string
		Layers []string
	}
	if err := document(b, "manifest.json", "", &list); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, damaged("it has neither an index.json nor a manifest.json")
		}
		return nil, err
	}
	if len(list) != 1 {
		return nil, glovebox.Errorf(glovebox.CodeInvalid, "save the one that you want alone", "the archive holds %d images",
			len(list))
	}
	img := &packed{config: &v1.ConfigFile{}}
	if err := document(b, list[0].Config, "", img.config); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, damaged("its configuration is missing")
		}
		return nil, err
	}
	if err := fits(cfg, img.config, len(list[0].Layers)); err != nil {
		return nil, err
	}
	for i, name := range list[0].Layers {
		img.layers = append(img.layers, layer{plain: img.config.RootFS.DiffIDs[i].String(),
			open: func() (io.ReadCloser, error) { return openLayer(b, name) }})
	}
	return img, nil
}
