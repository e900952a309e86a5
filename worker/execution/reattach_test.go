package execution

import (
	"errors"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/node"
)

// A container does not run, and its engine, which stops, does not answer the question why: it is asked again, so that the job is lost with the
// sandbox and does not fail with the engine's words.
func TestReattachToWhatDoesNotRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.Ready()
	b.Fake.Put(box.ID, false)
	x, _ := b.runner()
	asked := 0
	err := x.reattach(t.Context(), b.Sandbox(box), "job_x", func() (bool, error) {
		b.Fake.Drop("containers/test-"+box.ID+"/json", []int{1000, 0}[asked])
		asked++
		return false, farm.Conflictf("the container is not running")
	})
	if !errors.Is(err, node.ErrGone) || asked != 2 {
		t.Errorf("%v after %d looks", err, asked)
	}
}
