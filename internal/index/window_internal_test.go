package index

import (
	"testing"
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
		"NobodyWaits":    {false, true, 10 * lonePatience, false},
		"Below":          {true, true, lonePatience - 1, false},
		"AtTheLimit":     {true, true, lonePatience, false},
		"Above":          {true, true, lonePatience + 1, true},
		"CannotContinue": {true, false, 10 * lonePatience, false},
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
