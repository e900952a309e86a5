package queue

import (
	"testing"
	"time"
)

func TestRetryDelay(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]time.Duration{0: time.Second, 3: 4 * time.Second, 4: 5 * time.Second, 1000: 5 * time.Second} {
		if got := retryDelay(TypeJob, n); got != want {
			t.Errorf("a job waits %s after error %d, want %s", got, n, want)
		}
	}
	total := time.Duration(0)
	for n := range 15 {
		d := retryDelay(TypeCallback, n)
		if d < 5*time.Second || d > time.Hour {
			t.Errorf("a callback waits %s after error %d", d, n)
		}
		total += d
	}
	if total < 5*time.Hour || total > 12*time.Hour {
		t.Errorf("a callback is retried for %s", total)
	}
	if d := retryDelay(TypeCallback, 1<<30); d != time.Hour {
		t.Errorf("a callback waits %s after many errors", d)
	}
}
