//go:build !windows

package verbs

import (
	"os"
	"os/signal"
	"syscall"
)

// resized calls f when the size of this terminal changes, until stop is called.
func resized(_ *os.File, f func()) (stop func()) {
	changes, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(changes, syscall.SIGWINCH)
	go func() {
		for {
			select {
			case <-changes:
				f()
			case <-done:
				return
			}
		}
	}()
	return func() { signal.Stop(changes); close(done) }
}
