package testbed_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// failing is a test that ends at Fatalf.
type failing struct {
	testing.TB
	message string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.message = format
	panic(f)
}

func TestUntil(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun, looks := time.Now(), 0
		testbed.Until(t, "a minute is over", func() bool { looks++; return time.Since(begun) >= time.Minute })
		if took := time.Since(begun); took > time.Minute+50*time.Millisecond || looks > 1300 {
			t.Errorf("%d looks within %s", looks, took)
		}
		f := &failing{TB: t}
		func() {
			defer func() { _ = recover() }()
			testbed.Until(f, "never", func() bool { return false })
		}()
		if !strings.Contains(f.message, "not within") {
			t.Errorf("it said %q", f.message)
		}
	})
}
