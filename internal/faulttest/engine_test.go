//go:build faults

package faulttest_test

import (
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/faulttest"
)

// The engine is killed with all that runs in it, and starts again, while jobs run: each of them comes to an end with a
// sentence, what was in the engine is tidied up, and new sandboxes work. The engine is one of the test's own.
func TestEngineIsRestarted(t *testing.T) {
	t.Parallel()
	engine := enginetest.New(t, enginetest.Options{})
	engine.Load("sandfarm/python")
	f := newFarm(t, faulttest.Config{Workers: 2, Schedulers: 1, Engine: strings.TrimPrefix(engine.Host, "unix://")})
	c := f.Case(t, "engine killed and started again mid-run")
	boxes := c.Boxes(3)
	var jobs []*faulttest.Job
	for _, box := range boxes {
		jobs = append(jobs, c.Accept(box, faulttest.Run{Lines: 600, Want: []string{"lost"}}), c.Accept(box, faulttest.Run{Want: []string{"canceled", "lost"}, Never: true}))
		f.AwaitHolder(jobs[len(jobs)-2].ID)
	}
	c.Fault(engine.Kill, engine.Start)
	for _, j := range jobs {
		if end, err := f.Wait(t.Context(), j.ID); err != nil || end.Error == nil || len(end.Error.Message) < 20 {
			t.Errorf("a job whose sandbox went with the engine: %v %+v", err, end)
		}
	}
	c.Abandon(boxes...)
	c.Accept(c.Boxes(1)[0], faulttest.Run{Lines: 1})
	c.End()
	if n := f.CloseAll(); n > 0 {
		t.Errorf("%d containers are left", n)
	}
}
