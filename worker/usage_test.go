package worker

import (
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// What a sandbox has used is counted while it runs and when it is closed, once: by the reconcilers of two workers, and by the last sample
// before its container is removed.
func TestUsageIsCountedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, other, box := b.worker(), b.worker(), b.Ready()
	b.agent(box, w)
	counted := func() float64 {
		t.Helper()
		days, err := b.Store.Usage(t.Context(), box.Tenant, 1)
		workertest.Must(t, err)
		if len(days) == 0 {
			return 0
		}
		return days[0].CPUSeconds
	}
	for _, each := range []*Worker{w, other, w} {
		workertest.Must(t, each.reconciler.Run(t.Context()))
		if got := counted(); got != float64(workertest.CPUSeconds) {
			t.Errorf("after a run of a reconciler %v CPU seconds are counted, want %d", got, workertest.CPUSeconds)
		}
	}
	workertest.Must(t, w.handle(t.Context(), workertest.Task(b.CloseJob(box))))
	if s := b.Sandbox(box); s.State != farm.SandboxClosed || counted() != float64(workertest.CPUSeconds) {
		t.Errorf("the sandbox is %s and %v CPU seconds are counted", s.State, counted())
	}

	// One that is closed before any reconciler has seen it.
	short := b.Ready()
	b.agent(short, w)
	workertest.Must(t, w.handle(t.Context(), workertest.Task(b.CloseJob(short))))
	if got := counted(); got != 2*float64(workertest.CPUSeconds) {
		t.Errorf("with a short-lived sandbox %v CPU seconds are counted, want %d", got, 2*workertest.CPUSeconds)
	}
}
