package microvm

import "time"

// readTSC reads the CPU's counter of time stamps.
func readTSC() uint64

// measureTSC measures how fast that counts, in kHz. An emulated machine has the host's counter and nothing to measure it
// by.
func measureTSC() uint64 {
	const span = 50 * time.Millisecond
	begun, from := time.Now(), readTSC()
	<-time.After(span)
	to, took := readTSC(), time.Since(begun)
	return (to - from) * uint64(time.Millisecond) / uint64(max(took, 1))
}
