package microvm

import "testing"

// TestMeasureTSC: what is measured twice is the same, or an emulated machine's clock would be wrong.
func TestMeasureTSC(t *testing.T) {
	one, other := measureTSC(), measureTSC()
	if diff := max(one, other) - min(one, other); one < 100_000 || diff > one/1000 {
		t.Errorf("%d kHz, then %d kHz", one, other)
	}
}
