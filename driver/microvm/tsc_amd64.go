package microvm

import "time"

// readTSC reads the CPU's counter of time stamps.
func readTSC() uint64

// measureTSC measures how fast that counts, in kHz. An emulated machine has the host's counter and nothing to measure it
// by.
func measureTSC() uint64 {
	const span = 50 * time.Millisecond
	begun, from := moment()
	<-time.After(span)
	ended, to := moment()
	return (to - from) * uint64(time.Millisecond) / uint64(max(ended.Sub(begun), 1))
}

// moment is a time by both clocks. On a busy machine much may happen between two readings, so that of many the closest
// counts.
func moment() (at time.Time, tsc uint64) {
	best := ^uint64(0)
	for range 50 {
		before := readTSC()
		now := time.Now()
		after := readTSC()
		if took := after - before; took < best {
			best, at, tsc = took, now, before+took/2
		}
	}
	return at, tsc
}
