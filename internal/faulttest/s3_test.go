//go:build faults

package faulttest_test

import (
	"fmt"
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
	t.Run("Full", func(t *testing.T) {
		spoiled(t, f, "object store full for 8 s", func() { s3.Full(true) }, func() { <-time.After(8 * time.Second); s3.Full(false) })
	})
	t.Run("Failing", func(t *testing.T) {
		spoiled(t, f, "object store fails at random, 3 of 10 requests", func() { s3.Failing(0.3) }, func() { <-time.After(8 * time.Second); s3.Failing(0) })
	})
	if rounds() > 1 {
		t.Run("AwayForLong", func(t *testing.T) { storeAwayForLong(t, f) })
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
