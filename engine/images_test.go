package engine

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestLookAgain: what is installed while an engine lives is seen, and a look is not taken for each run.
func TestLookAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		i := &images{look: func() (Image, error) {
			if looks++; looks == 2 {
				return nil, errors.New("not now")
			}
			return fakeImage{}, nil
		}}
		for want := 1; want <= 3; want++ {
			for range 3 {
				im, err := i.get()
				if failed := want == 2; looks != want || (err != nil) != failed || (im == nil) != failed {
					t.Errorf("look %d, want %d: %v, %v", looks, want, im, err)
				}
			}
			time.Sleep(lookAgain)
		}
	})
}

// TestHostImage: without an image that is given it is the host's, whose state is told.
func TestHostImage(t *testing.T) {
	i := newImages(nil)
	first, err := i.get()
	if err != nil {
		t.Skip(err)
	}
	i.at = time.Now().Add(-lookAgain)
	if again, err := i.get(); err != nil || again == first || again.Identity() != first.Identity() {
		t.Errorf("%v, %v, %v", again, first, err)
	}
}
