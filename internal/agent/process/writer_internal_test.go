package process

import (
	"fmt"
	"testing"
)

// The writer that was not used for the longest time is forgotten, beyond knownWriters.
func TestWritersAreBounded(t *testing.T) {
	t.Parallel()
	for others, known := range map[int]bool{knownWriters - 2: true, knownWriters - 1: true, knownWriters: false} {
		var w writers
		first := w.get("first")
		for i := range others {
			w.get(fmt.Sprint(i))
		}
		if got := w.get("first") == first; got != known {
			t.Errorf("after %d others it is known: %v", others, got)
		}
	}
}
