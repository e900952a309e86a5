package index

import (
	"testing"
	"testing/synctest"
	"time"
)

// A reader that takes a byte now and then may hold up its own download, but not for ever those that wait for its slot.
func TestALoneSlowReaderMakesOthersWaitForALimitedTime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		others, storing bool
		waited          time.Duration
		dropped         bool
	}{
		"NobodyWaits":    {false, true, 10 * loneTimeout, false},
		"Below":          {true, true, loneTimeout - 1, false},
		"AtTheLimit":     {true, true, loneTimeout, false},
		"Above":          {true, true, loneTimeout + 1, true},
		"CannotContinue": {true, false, 10 * loneTimeout, false},
	} {
		f := &flight{window: newWindow(), written: windowSize}
		f.window.storing = c.storing
		reader := &content{}
		f.window.readers[reader] = &follower{moved: time.Now().Add(time.Minute)}
		full := f.full(1, c.waited, c.others)
		if _, there := f.window.readers[reader]; there == c.dropped || full == c.dropped {
			t.Errorf("%s: the reader is followed: %v, the window is full: %v", name, there, full)
		}
	}
}

// While the download waits for upstream or for the cache, its readers have nothing to read. They are not given up for that when it goes on, even
// if it fills the window before they read again.
func TestReadersOutliveAStalledDownload(t *testing.T) {
	t.Parallel()
	for name, follows := range map[string]bool{"Reader": true, "ReaderToCome": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &flight{window: newWindow()}
				if follows {
					f.window.readers[&content{}] = &follower{moved: time.Now()}
				}
				if f.full(1, 0, false) {
					t.Error("an empty window is full")
				}
				time.Sleep(10 * stallTimeout)
				for ; f.written < windowSize; f.written += chunk {
					if f.full(chunk, 0, false) {
						t.Fatalf("the window is full after %d bytes", f.written)
					}
				}
				if !f.full(chunk, 0, false) {
					t.Error("a full window does not wait for a reader")
				}
				time.Sleep(stallTimeout + 1)
				if f.full(chunk, 0, false) {
					t.Error("the window waits for longer than it should")
				}
			})
		})
	}
}
