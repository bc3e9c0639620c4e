package imagesource

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"glovebox"
	"glovebox/internal/image"
	"glovebox/internal/unpack"
)

// packed is an image that is still in archives.
type packed struct {
	config *v1.ConfigFile // nil: there is none
	layers []layer        // the lowest first
}

// layer is one archive of an image.
type layer struct {
	open func() (io.ReadCloser, error)
	// digest is that of the bytes as they are kept, and plain that of what they hold; each may be empty.
	digest, plain string
	size          int64 // as they are kept; 0: unknown
}

const (
	maxDocument = 8 << 20 // bytes of a manifest, an index or a configuration
	maxLayers   = 500
)

// unpack fills a tree.
func (p *packed) unpack(ctx context.Context, tree *unpack.Tree) (s image.Settings, err error) {
	if len(p.layers) > maxLayers {
		return s, damaged("it has %d layers", len(p.layers))
	}
	env := map[string]string{}
	if p.config != nil {
		for _, v := range p.config.Config.Env {
			name, value, _ := strings.Cut(v, "=")
			env[name] = value
		}
	}
	if s, err = image.NewSettings(env, nil); err != nil {
		return s, err
	}
	for i := range p.layers {
		if err := p.layers[i].unpack(ctx, tree, i, p.config != nil); err != nil {
			return s, err
		}
	}
	return s, nil
}

// unpack puts one layer over what the tree has.
func (l *layer) unpack(ctx context.Context, tree *unpack.Tree, number int, layered bool) (err error) {
	kept, err := l.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kept.Close()) }()
	asKept, asPlain := sha256.New(), sha256.New()
	var from io.Reader = &interruptible{ctx, kept}
	if l.size > 0 {
		from = io.LimitReader(from, l.size+1)
	}
	raw := io.TeeReader(from, asKept)
	plain, err := decompress(raw)
	if err != nil {
		return err
	}
	defer plain.Close()
	err = tree.Layer(ctx, io.TeeReader(plain, asPlain), layered)
	var told *glovebox.Error
	if err != nil && !errors.As(err, &told) {
		return err // of this machine
	}
	if err == nil { // what follows the archive counts too
		_, err = io.Copy(io.Discard, raw)
	}
	if err == nil && (wrong(asKept, l.digest) || wrong(asPlain, l.plain)) {
		err = damaged("layer %d does not have the digest that names it", number+1)
	}
	return err
}

func wrong(h hash.Hash, want string) bool {
	return want != "" && "sha256:"+hex.EncodeToString(h.Sum(nil)) != want
}

// fits checks a configuration against what it is for.
func fits(cfg Config, c *v1.ConfigFile, layers int) error {
	if got := c.OS + "/" + c.Architecture; c.OS != "" && c.Architecture != "" && got != cfg.Platform {
		return glovebox.Errorf(glovebox.CodeInvalid, "import one that was made for "+cfg.Platform+", or say --platform",
			"the image is for %.40s, and %s is wanted", got, cfg.Platform)
	}
	if n := len(c.RootFS.DiffIDs); n != layers {
		return damaged("it has %d layers and says that it has %d", layers, n)
	}
	return nil
}
