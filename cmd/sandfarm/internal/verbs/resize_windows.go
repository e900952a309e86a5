package verbs

import (
	"os"
	"time"
)

// resized calls f when the size of this console changes, until stop is called. Windows has no signal for it.
func resized(out *os.File, f func()) (stop func()) {
	done := make(chan struct{})
	tick := time.NewTicker(500 * time.Millisecond)
	before, _ := sizeOf(out)
	go func() {
		for {
			select {
			case <-tick.C:
				if now, ok := sizeOf(out); ok && now != before {
					before = now
					f()
				}
			case <-done:
				return
			}
		}
	}()
	return func() { tick.Stop(); close(done) }
}
