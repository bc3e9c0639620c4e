package engine

import (
	"sync"
	"time"

	"glovebox/internal/image"
)

// lookAgain is how long is believed what was seen of the host: packages come and go while a server lives.
const lookAgain = 5 * time.Second

// images is the runtime image as it was seen last. It is safe for concurrent use.
type images struct {
	look func() (Image, error)

	mu   sync.Mutex
	at   time.Time // when that was; zero: never
	seen Image
	err  error
}

// newImages looks at the host now and then, unless there is an image that was given.
func newImages(given Image) *images {
	if given != nil {
		return &images{look: func() (Image, error) { return given, nil }}
	}
	return &images{look: func() (Image, error) {
		im, err := image.Host(image.Config{})
		if err != nil {
			return nil, err // and no interface around a nil pointer
		}
		return im, nil
	}}
}

// get is the image as it is now, or was a moment ago. One run uses one.
func (i *images) get() (Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.at.IsZero() || time.Since(i.at) >= lookAgain {
		i.seen, i.err = i.look()
		i.at = time.Now()
	}
	return i.seen, i.err
}
