//go:build faults

package faulttest_test

import (
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/faulttest"
)

// inside is something that dies inside a sandbox.
type inside struct {
	name string
	run  faulttest.Run
	harm func(box string)
	dead bool // the sandbox is lost with it
}

// Something dies inside a sandbox: the caller is told what, and no other sandbox notices.
func insideSandbox(t *testing.T, f *faulttest.Farm) {
	for _, one := range []inside{
		{name: "agent killed in the sandbox", run: faulttest.Run{Lines: 600, Want: []string{"lost"}}, dead: true, harm: f.KillSandbox},
		{name: "kernel killed while code runs", run: faulttest.Run{Lines: 3, Code: "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", Want: []string{"completed", "failed"}}},
		{name: "sandbox out of memory", run: faulttest.Run{Lines: 3, Code: "x = []\nwhile True:\n    x.append(bytearray(16 << 20))", Want: []string{"completed", "failed", "lost"}}},
	} {
		one.happens(t, f)
	}
}

func (one inside) happens(t *testing.T, f *faulttest.Farm) {
	c := f.Case(t, one.name)
	memory := 256
	box := f.Box(wire.CreateRequest{Resources: &wire.ResourcesRequest{MemoryMB: &memory}})
	job := c.Insist(box, one.run)
	f.AwaitHolder(job.ID)
	c.Fault(func() {
		if one.harm != nil {
			one.harm(box)
		}
	}, nil)
	end, err := f.Wait(t.Context(), job.ID)
	if err != nil {
		t.Fatal(err)
	}
	reported := ""
	switch {
	case end.Error != nil:
		reported = end.Error.Message
	case end.Result != nil && end.Result.Execute != nil && end.Result.Execute.Error != nil:
		reported = end.Result.Execute.Error.Value
	}
	t.Logf("%s: %s: %s", one.name, end.State, reported)
	if len(reported) < 20 {
		t.Errorf("the caller is told %q: %+v", reported, end)
	}
	if one.dead {
		f.Until(30*time.Second, "the sandbox is lost", func() bool {
			now, err := f.Sandbox(t.Context(), box)
			return err == nil && now.State == "lost"
		})
	} else {
		c.Own(box)
		settledOne(t, f, c.Insist(box, faulttest.Run{Lines: 1})) // in a new kernel
	}
	c.End()
}

// settledOne waits until a job has completed.
func settledOne(t *testing.T, f *faulttest.Farm, j *faulttest.Job) {
	t.Helper()
	if end, err := f.Wait(t.Context(), j.ID); err != nil || end.State != "completed" {
		t.Errorf("a job: %v %s %+v", err, end.State, end.Error)
	}
}
