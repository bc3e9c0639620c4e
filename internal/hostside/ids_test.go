package hostside

import "testing"

func TestPools(t *testing.T) {
	for name, c := range map[string]struct {
		pool, want IDPool
	}{
		"whole":                  {IDPool{Start: 1 << 20, Count: 64}, IDPool{Start: 1 << 20, Count: 64}},
		"rounded inwards":        {IDPool{Start: 1<<20 + 1, Count: 62}, IDPool{Start: 1<<20 + 16, Count: 32}},
		"root within a block":    {IDPool{Start: 1, Count: 16}, IDPool{}},
		"people of the host":     {IDPool{Start: 1000, Count: 64}, IDPool{}},
		"smaller than a block":   {IDPool{Start: 70000, Count: 8}, IDPool{}},
		"up to the end of ids":   {IDPool{Start: 1<<32 - 32, Count: 32}, IDPool{}},
		"beyond the end":         {IDPool{Start: 1<<32 - 64, Count: 1 << 31}, IDPool{}},
		"none between two edges": {IDPool{Start: 1<<20 + 1, Count: 30}, IDPool{}},
	} {
		got, err := c.pool.Whole()
		if got != c.want || (err == nil) != (c.want != IDPool{}) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
	}
}
