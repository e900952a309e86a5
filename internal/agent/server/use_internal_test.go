package server

import (
	"testing"
	"time"
)

func TestUseIsTheAverageSinceItWasAsked(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	m := meter{at: start}
	for i, c := range []struct {
		after, cpu time.Duration
		want       float64
	}{
		{useSpan - 1, time.Second, 0}, // too early
		{10 * time.Second, 5 * time.Second, 0.5},
		{10*time.Second + useSpan - 1, 6 * time.Second, 0.5}, // the average of before
		{10*time.Second + useSpan, 7 * time.Second, 2},
		{20 * time.Second, 0, 0}, // a counter that went back
	} {
		if got := m.read(start.Add(c.after), c.cpu); got != c.want {
			t.Errorf("reading %d: %g, want %g", i, got, c.want)
		}
	}
}
