package index

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/testbed"
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
		reader := &content{ctx: t.Context()}
		f.window.readers[reader] = &follower{moved: time.Now().Add(time.Minute)}
		full := f.full(1, c.waited, c.others)
		_, there := f.window.readers[reader]
		testbed.Check(t, there != c.dropped && full != c.dropped, "%s: the reader is followed: %v, the window is full: %v", name, there, full)
	}
}

// One tenant stopped another's download of the same large file for as long as it liked: each new reader was waited for anew.
func TestATenantDoesNotStopAnotherWithNewReaders(t *testing.T) {
	t.Parallel()
	of := func(tenant string) *content {
		return &content{ctx: context.WithValue(t.Context(), tenantKey{}, tenant)}
	}
	f := &flight{window: newWindow(), written: windowSize}
	follows := func(c *content, off int64) {
		f.window.readers[c] = &follower{off: off, moved: time.Now().Add(time.Minute)}
	}
	// wait is the wait for two new readers of the loud tenant. It reports whether the window is full, and whether they are followed.
	wait := func(waited time.Duration) (full, followed bool) {
		one, two := of("loud"), of("loud")
		for _, c := range []*content{one, two} {
			f.enterWindow(c)
			follows(c, 0)
			defer f.leaveWindow(c)
		}
		full = f.full(1, waited, false)
		return full, f.window.readers[one] != nil && f.window.readers[two] != nil
	}
	for range 3 {
		full, followed := wait(slowTimeout)
		testbed.Check(t, full && followed, "a tenant's readers do not wait for each other: full %v, followed %v", full, followed)
	}
	quiet := of("quiet")
	f.enterWindow(quiet) // it need not follow: it may wait for the file to be stored
	for i, c := range []struct {
		waited time.Duration
		full   bool
	}{{slowTimeout - 1, true}, {1, true}, {1, false}, {0, false}} {
		follows(quiet, windowSize)
		full, followed := wait(c.waited)
		testbed.Check(t, full == c.full && followed == c.full, "wait %d: the window is full: %v, the readers are followed: %v", i, full, followed)
		testbed.Check(t, f.window.readers[quiet] != nil, "wait %d: the other tenant is not followed", i)
	}
	f.leaveWindow(quiet)
	full, _ := wait(slowTimeout)
	testbed.Check(t, full, "a tenant is not followed for what it did while another one read")
	testbed.Check(t, len(f.window.reading) == 0, "readers are left: %v", f.window.reading)
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
					f.window.readers[&content{ctx: t.Context()}] = &follower{moved: time.Now()}
				}
				testbed.Check(t, !f.full(1, 0, false), "an empty window is full")
				time.Sleep(10 * stallTimeout)
				for ; f.written < windowSize; f.written += chunk {
					testbed.Require(t, !f.full(chunk, 0, false), "the window is full after %d bytes", f.written)
				}
				testbed.Check(t, f.full(chunk, 0, false), "a full window does not wait for a reader")
				time.Sleep(stallTimeout + 1)
				testbed.Check(t, !f.full(chunk, 0, false), "the window waits for longer than it should")
			})
		})
	}
}

func TestLRU(t *testing.T) {
	t.Parallel()
	l := newLRU[int](10)
	for i, key := range []string{"a", "b", "c"} {
		l.put(key, i, 3)
	}
	_, ok := l.get("a")
	testbed.Check(t, ok && l.used == 9, "used %d of 10", l.used)
	l.put("d", 3, 4) // b is the least recently used, then c
	for key, want := range map[string]bool{"a": true, "b": false, "c": true, "d": true} {
		_, ok := l.get(key)
		testbed.Check(t, ok == want, "%s exists: %v", key, ok)
	}
	for cost, want := range map[int64]bool{9: true, 10: true, 11: false} {
		l.put("e", 4, cost)
		_, ok := l.get("e")
		testbed.Check(t, ok == want && l.used <= 10, "a value of %d exists: %v, used %d", cost, ok, l.used)
	}
	l.put("f", 5, 1)
	l.put("f", 6, 2)
	v, _ := l.get("f")
	testbed.Check(t, v == 6 && l.used == 2 && l.order.Len() == 1, "value %d, used %d by %d", v, l.used, l.order.Len())
	l.remove("f")
	l.remove("f")
	testbed.Check(t, l.used == 0 && l.order.Len() == 0 && len(l.byKey) == 0, "used %d by %d", l.used, l.order.Len())
}
