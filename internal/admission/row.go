package admission

import (
	"cmp"
	"errors"
	"slices"

	"glovebox/internal/lockfile"
)

// row is one opening of the file of locks and what is held through it. It is not safe for concurrent use.
type row struct {
	file   *lockfile.File
	budget int64            // of this process
	mine   []lockfile.Range // memory, in its order
}

// others is what is held of the memory through other openings, in its order.
func (r *row) others() (sum int64, taken []lockfile.Range, err error) {
	err = r.file.Each(lockfile.Range{Start: 0, Length: queue}, func(held lockfile.Range) bool {
		sum += held.Length
		taken = append(taken, held)
		return true
	})
	slices.SortFunc(taken, inOrder)
	return sum, taken, err
}

func inOrder(a, b lockfile.Range) int { return cmp.Compare(a.Start, b.Start) }

// first tells whether no ticket of anybody else before this one holds it up.
func (r *row) first(ticket int64) (bool, error) {
	first := true
	var failed error
	err := r.file.Each(lockfile.Range{Start: queue, Length: ticket - queue}, func(held lockfile.Range) bool {
		// Tickets side by side of one opening are told as one range.
		for t := held.Start; t < held.Start+held.Length && first && failed == nil; t++ {
			var bars bool
			bars, failed = r.bars(t)
			first = !bars
		}
		return first && failed == nil
	})
	if err == nil {
		err = failed
	}
	return first && err == nil, err
}

// take takes so many free bytes of the first budget ones, where taken is what others hold. It returns nil, and has taken
// nothing, where others were faster.
func (r *row) take(need, budget int64, taken []lockfile.Range) ([]lockfile.Range, error) {
	if len(taken) == 0 {
		taken = r.mine
	} else {
		taken = slices.Concat(taken, r.mine)
		slices.SortFunc(taken, inOrder)
	}
	var pieces []lockfile.Range
	left, at := need, int64(0)
	for i := 0; left > 0 && at < budget; i++ {
		next := lockfile.Range{Start: budget}
		if i < len(taken) {
			next = taken[i]
		}
		if n := min(left, min(next.Start, budget)-at); n > 0 {
			piece := lockfile.Range{Start: at, Length: n}
			ok, err := r.file.Take(piece)
			if err != nil || !ok { // somebody passed this one over
				return nil, errors.Join(err, r.leave(pieces))
			}
			pieces = append(pieces, piece)
			left -= n
		}
		at = max(at, next.Start+next.Length)
	}
	if left > 0 {
		return nil, r.leave(pieces)
	}
	r.mine = slices.Concat(r.mine, pieces)
	slices.SortFunc(r.mine, inOrder)
	return pieces, nil
}

func (r *row) leave(pieces []lockfile.Range) error {
	var errs []error
	for _, p := range pieces {
		errs = append(errs, r.file.Leave(p))
	}
	return errors.Join(errs...)
}

// give gives back what was taken.
func (r *row) give(pieces []lockfile.Range) error {
	r.mine = slices.DeleteFunc(r.mine, func(m lockfile.Range) bool { return slices.Contains(pieces, m) })
	return r.leave(pieces)
}
