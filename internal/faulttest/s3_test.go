//go:build faults

package faulttest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/faulttest"
)

// The object store is away, slow, full, or fails at random while files are uploaded.
func TestObjectStoreIsSpoiled(t *testing.T) {
	t.Parallel()
	f := newFarm(t, faulttest.Config{Workers: 2, Schedulers: 1, Links: true})
	s3 := f.S3Link()
	for _, d := range []time.Duration{time.Second, short(15*time.Second, 60*time.Second)} {
		t.Run(fmt.Sprintf("Away%s", d), func(t *testing.T) {
			spoiled(t, f, fmt.Sprintf("object store away for %s at upload", d), func() { s3.Away(true) }, func() { <-time.After(d); s3.Away(false) })
		})
	}
	t.Run("Slow", func(t *testing.T) {
		spoiled(t, f, "object store slow, 1 KiB/s, for 8 s", func() { s3.Slow(1024) }, func() { <-time.After(8 * time.Second); s3.Slow(0) })
	})
	t.Run("Full", func(t *testing.T) { storeFull(t, f) })
	t.Run("Failing", func(t *testing.T) {
		spoiled(t, f, "object store fails at random, 3 of 10 requests", func() { s3.Failing(0.3) }, func() { <-time.After(8 * time.Second); s3.Failing(0) })
	})
	if rounds() > 1 {
		for range rounds() {
			t.Run("AwayForLong", func(t *testing.T) { storeAwayForLong(t, f) })
		}
	}
	f.End()
}

// spoiled lets jobs with files end while the store is spoiled: their files are stored once it is well again. Jobs without files do not wait.
func spoiled(t *testing.T, f *faulttest.Farm, name string, harm, heal func()) {
	c := f.Case(t, name)
	boxes := c.Boxes(4)
	for range rounds() {
		for _, box := range boxes[:3] {
			c.Insist(box, faulttest.Run{Lines: 3, Files: 2, Code: "open('large.bin', 'wb').write(bytes(6000))"})
		}
		moment(300 * time.Millisecond)
		c.Fault(harm, func() {
			beside := c.Insist(boxes[3], faulttest.Run{Lines: 3})
			if end, err := f.Wait(t.Context(), beside.ID); err != nil || end.State != "completed" {
				t.Errorf("a job without files: %v %s %+v", err, end.State, end.Error)
			}
			heal()
		})
		settled(t, f, c)
	}
	c.End()
}

// storeFull fills the store. An upload is not repeated then, for that would only hold up what waits behind it: the caller is told so, the code
// does not run again, the files are still in the workspace, and the files of the next job are stored once there is room.
func storeFull(t *testing.T, f *faulttest.Farm) {
	c := f.Case(t, "object store full")
	for _, box := range c.Boxes(3) {
		const made, size = "open('made.bin', 'wb').write(bytes(6000))", "import os\nprint(os.path.getsize('made.bin'))\nos.remove('made.bin')"
		job := c.Insist(box, faulttest.Run{Held: true, Files: 2, Code: made, Want: []string{"failed"}}) // it still runs when the store is full
		f.AwaitHolder(job.ID)
		c.Fault(func() { f.S3Link().Full(true) }, func() {
			c.Release(job)
			end, err := f.Wait(t.Context(), job.ID)
			if err != nil || end.Error == nil || end.Error.Code != "unavailable" || !strings.Contains(end.Error.Message, "full") {
				t.Errorf("a job whose files have no room: %v %s %+v", err, end.State, end.Error)
			}
			f.S3Link().Full(false)
		})
		settledOne(t, f, c.Insist(box, faulttest.Run{Files: 2, Code: size, Out: "6000\n"}))
	}
	c.End()
}

// storeAwayForLong keeps the store away for longer than uploads are repeated: the caller is told so, the code does not run again, and the files
// are still in the workspace.
func storeAwayForLong(t *testing.T, f *faulttest.Farm) {
	c := f.Case(t, "object store away for 10 minutes at upload")
	boxes := c.Boxes(1)
	job := c.Insist(boxes[0], faulttest.Run{Lines: 50, Files: 1, Want: []string{"failed"}}) // it still runs when the store goes
	f.AwaitHolder(job.ID)
	c.Fault(func() { f.S3Link().Away(true) }, func() {
		<-time.After(10 * time.Minute)
		f.S3Link().Away(false)
	})
	c.Insist(boxes[0], faulttest.Run{Code: "import glob\nprint(len(glob.glob('*.txt')))", Out: "1\n"})
	c.End()
}
