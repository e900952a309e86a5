package server

import (
	"testing"
	"time"
)

func TestPausesBeforeRestarts(t *testing.T) {
	t.Parallel()
	r := restarts{most: 10}
	for i, want := range []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000} {
		if pause, more := r.after(0); pause != want*time.Millisecond || !more {
			t.Errorf("restart %d: %s, %v", i+1, pause, more)
		}
	}
	if _, more := r.after(steadyRun - 1); more {
		t.Error("an eleventh restart in a row")
	}
	if pause, more := r.after(steadyRun); pause != firstRestartPause || !more {
		t.Errorf("after a long run: %s, %v", pause, more)
	}
}
