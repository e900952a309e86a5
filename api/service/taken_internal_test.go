package service

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// A slow reader keeps the copy that it reads, which is removed an hour after the last sign of life.
func TestASlowReaderKeepsItsCopy(t *testing.T) {
	t.Parallel()
	now, signs, removed := time.Unix(1e9, 0), 0, 0
	f := &taken{
		ReadCloser: io.NopCloser(iotest.OneByteReader(strings.NewReader("01234567"))), at: now,
		now:  func() time.Time { now = now.Add(chargeEvery/2 + 1); return now },
		keep: func() error { signs++; return nil },
		done: func() { removed++ },
	}
	got, err := io.ReadAll(f)
	if string(got) != "01234567" || err != nil || signs != 4 {
		t.Errorf("read %q, %v, with %d signs of life; want 4", got, err, signs)
	}
	if err := f.Close(); err != nil || removed != 1 {
		t.Errorf("closed: %v, removed %d times", err, removed)
	}
}
