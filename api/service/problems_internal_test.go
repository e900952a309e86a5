package service

import (
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// A list of a million bad rules once made a million problems, of which twenty were reported.
func TestNoMoreProblemsAreKeptThanReported(t *testing.T) {
	t.Parallel()
	for n, kept := range map[int]int{strict.MaxProblems - 1: strict.MaxProblems - 1, strict.MaxProblems: strict.MaxProblems, strict.MaxProblems + 1: strict.MaxProblems} {
		p := Call{}.problems()
		for i := range n {
			p.check("/allow_hosts/"+strconv.Itoa(i), farm.Errorf(farm.CodeTooLarge, "too large"))
		}
		if len(p.found) != kept || farm.CodeOf(p.err()) != farm.CodeTooLarge {
			t.Errorf("%d problems: %d are kept, %v", n, len(p.found), p.err())
		}
		p.addf("/name", "bad") // counts even where it is not kept
		if farm.CodeOf(p.err()) != farm.CodeInvalid || !p.of("/name") {
			t.Errorf("one of %d problems is not about size: %v", n, p.err())
		}
	}
}

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
