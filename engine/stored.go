package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"glovebox"
	"glovebox/internal/imagestore"
)

// hostImage is the image that is not stored.
const hostImage = "host"

// checkAgain is how long is believed what a look at all of an image's files found. A look takes some milliseconds, which a
// run that has its sandbox ready would feel.
const checkAgain = 2 * time.Second

// storedImages are the unpacked images that are in use, or were a moment ago. It is safe for concurrent use.
type storedImages struct {
	store *imagestore.Store
	keep  time.Duration // after its last use, while sandboxes that show one may be ready

	mu   sync.Mutex
	open map[string]*storedImage
	shut bool
}

// storedImage is one of them. The mutex of storedImages guards it.
type storedImage struct {
	*imagestore.Used
	digest  string
	checked time.Time
	users   int
	gone    bool // nobody gets it any more
	timer   *time.Timer
}

func newStoredImages(dir string, pool Pool) *storedImages {
	s := &storedImages{store: imagestore.New(imagestore.Config{Dir: dir}), open: map[string]*storedImage{}}
	if pool.Spares > 0 {
		s.keep = cmp.Or(pool.Idle, 10*time.Minute) + time.Minute
	}
	return s
}

// use finds an image by name, which is as it was made; done ends its use. Errors are *glovebox.Error.
func (s *storedImages) use(ctx context.Context, name string) (_ Image, done func(context.Context) error, err error) {
	digest, err := s.store.Digest(name)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	im := s.open[name]
	if im != nil && im.digest != digest {
		s.drop(name, im)
		im = nil
	}
	switch {
	case im == nil:
		used, err := s.store.Use(ctx, name)
		if err != nil {
			return nil, nil, err
		}
		im = &storedImage{Used: used, digest: digest, checked: time.Now()}
		s.open[name] = im
	case time.Since(im.checked) >= checkAgain:
		if err := im.Check(ctx); err != nil {
			if ctx.Err() == nil {
				s.drop(name, im)
			}
			return nil, nil, err
		}
		im.checked = time.Now()
	}
	im.users++
	if im.timer != nil {
		im.timer.Stop()
	}
	var once sync.Once
	return im, func(context.Context) (err error) {
		once.Do(func() { err = s.leave(name, im) })
		return err
	}, nil
}

// leave ends one use.
func (s *storedImages) leave(name string, im *storedImage) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	im.users--
	switch {
	case im.users > 0:
		return nil
	case im.gone:
		return im.Close()
	case s.keep == 0 || s.shut:
		return s.drop(name, im)
	}
	im.timer = time.AfterFunc(s.keep, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if im.users == 0 && !im.gone {
			s.drop(name, im)
		}
	})
	return nil
}

// drop gives an image to nobody any more, and lets it go once nobody uses it.
func (s *storedImages) drop(name string, im *storedImage) error {
	delete(s.open, name)
	im.gone = true
	if im.timer != nil {
		im.timer.Stop()
	}
	if im.users > 0 {
		return nil
	}
	return im.Close()
}

// close lets go of all images.
func (s *storedImages) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut = true
	var errs []error
	for _, name := range slices.Collect(maps.Keys(s.open)) {
		errs = append(errs, s.drop(name, s.open[name]))
	}
	return errors.Join(errs...)
}

// reportImages adds the stored images to a report, and what keeps one from being used.
func (e *Engine) reportImages(ctx context.Context, r *glovebox.Report) {
	names, err := e.stored.store.Names()
	if err != nil {
		c := part(glovebox.IsolationProcess, "images", err)
		c.Required = false
		r.Controls = append(r.Controls, c)
	}
	for _, name := range names {
		im, done, err := e.stored.use(ctx, name)
		if err == nil {
			r.Images = append(r.Images, im.Report())
			err = done(ctx)
		}
		if err != nil {
			c := part(glovebox.IsolationProcess, fmt.Sprintf("image %s", name), err)
			c.Required = false
			r.Controls = append(r.Controls, c)
		}
	}
}
