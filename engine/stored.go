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

// How long is believed what a look at all of an image's files found. A look takes some milliseconds for each thousand, which
// a run that has its sandbox ready would feel. Where the kernel tells of changes, it is believed until it does, but for what
// the kernel does not tell: a folder that something was mounted over.
const (
	checkAgain   = 2 * time.Second
	checkWatched = time.Minute
)

// storedImages are the unpacked images that are in use, or were a moment ago. It is safe for concurrent use.
type storedImages struct {
	store *imagestore.Store
	keep  time.Duration // after its last use, while sandboxes that show one may be ready

	mu    sync.Mutex
	open  map[string]*storedImage
	turns map[string]chan struct{} // by name
	shut  bool
}

// storedImage is one of them. Whoever has the image's turn looks at it, and the mutex of storedImages guards who uses it.
type storedImage struct {
	*imagestore.Used
	digest  string
	checked time.Time // guarded by the turn
	watched bool      // the kernel tells of changes
	users   int
	gone    bool // nobody gets it any more
	timer   *time.Timer
}

func newStoredImages(dir string, pool Pool) *storedImages {
	s := &storedImages{store: imagestore.New(imagestore.Config{Dir: dir}), open: map[string]*storedImage{},
		turns: map[string]chan struct{}{}}
	if pool.Spares > 0 {
		s.keep = cmp.Or(pool.Idle, 10*time.Minute) + time.Minute
	}
	return s
}

// use finds an image by name, which is as it was made; done ends its use. Errors are *glovebox.Error, or why ctx ended.
// Those who want one image wait for each other's look at its files, and nobody else does.
func (s *storedImages) use(ctx context.Context, name string) (_ Image, done func(context.Context) error, err error) {
	if _, err := s.store.Digest(name); err != nil { // so that turns are of names that there are
		return nil, nil, err
	}
	end, err := s.turn(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	defer end()
	digest, err := s.store.Digest(name)
	if err != nil {
		return nil, nil, err
	}
	im := s.take(name, digest)
	if im == nil {
		im, err = s.bring(ctx, name, digest)
	} else if err = im.look(ctx); err != nil {
		err = errors.Join(err, s.giveUp(ctx, name, im))
	}
	if err != nil {
		return nil, nil, err
	}
	var once sync.Once
	return im, func(context.Context) (err error) {
		once.Do(func() { err = s.leave(name, im) })
		return err
	}, nil
}

// turn waits until nobody else looks at an image's files; end lets the next one.
func (s *storedImages) turn(ctx context.Context, name string) (end func(), err error) {
	s.mu.Lock()
	turn := s.turns[name]
	if turn == nil {
		turn = make(chan struct{}, 1)
		s.turns[name] = turn
	}
	s.mu.Unlock()
	end = func() { <-turn }
	select {
	case turn <- struct{}{}: // also for who has no time to wait
		return end, nil
	default:
	}
	select {
	case turn <- struct{}{}:
		return end, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// take begins a use of an image that is open; nil where it is not, or another one now.
func (s *storedImages) take(name, digest string) *storedImage {
	s.mu.Lock()
	defer s.mu.Unlock()
	im := s.open[name]
	if im == nil {
		return nil
	}
	if im.digest != digest {
		s.drop(name, im)
		return nil
	}
	im.users++
	if im.timer != nil {
		im.timer.Stop()
	}
	return im
}

// bring opens an image, which is in use then.
func (s *storedImages) bring(ctx context.Context, name, digest string) (*storedImage, error) {
	used, err := s.store.Use(ctx, name)
	if err != nil {
		return nil, err
	}
	im := &storedImage{Used: used, digest: digest, checked: time.Now(), users: 1}
	if err := s.watch(ctx, im); err != nil {
		return nil, errors.Join(err, im.Close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[name] = im
	return im, nil
}

// look looks at all of the image's files again where that is due.
func (im *storedImage) look(ctx context.Context) error {
	if !im.due() {
		return nil
	}
	im.checked = time.Time{} // the kernel tells once, and this may be cut short
	if err := im.Check(ctx); err != nil {
		return err
	}
	im.checked = time.Now()
	return nil
}

// giveUp ends a use that failed. Nobody gets what is not as it was made any more.
func (s *storedImages) giveUp(ctx context.Context, name string, im *storedImage) error {
	s.mu.Lock()
	if ctx.Err() == nil && !im.gone {
		s.drop(name, im)
	}
	s.mu.Unlock()
	return s.leave(name, im)
}

// watch has the kernel tell of changes, where the image is to be used more than once and the kernel can.
func (s *storedImages) watch(ctx context.Context, im *storedImage) error {
	if s.keep == 0 {
		return nil
	}
	err := im.Watch(ctx)
	var changed *glovebox.Error
	if errors.As(err, &changed) || ctx.Err() != nil {
		return err
	}
	im.watched = err == nil
	return nil
}

// due tells whether all of the image's files are to be looked at again.
func (im *storedImage) due() bool {
	age := time.Since(im.checked)
	if im.watched {
		return !im.Quiet() || age >= checkWatched
	}
	return age >= checkAgain
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
		c := part("images", err)
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
			c := part(fmt.Sprintf("image %s", name), err)
			c.Required = false
			r.Controls = append(r.Controls, c)
		}
	}
}
