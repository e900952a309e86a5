package worker

import (
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// An engine that is being restarted costs no creation: it is tried again until the creation's time is up.
func TestCreationWaitsForTheEngine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.CreateTimeout = time.Second
	w := b.worker()
	job, box := b.creation(farm.KindCreate)
	b.eng.Close()
	began := time.Now()
	must(t, w.handle(t.Context(), task(job)))
	if took := time.Since(began); took < b.cfg.CreateTimeout {
		t.Errorf("gave up after %v", took)
	}
	got, s := b.job(job), b.sandbox(box)
	if got.State != farm.JobFailed || got.Error.Code != farm.CodeUnavailable || !strings.Contains(got.Error.Message, "engine does not answer") {
		t.Errorf("job %s, error %+v", got.State, got.Error)
	}
	if s.State != farm.SandboxFailed || strings.Contains(s.Reason, "tcp://") {
		t.Errorf("sandbox %s, reason %q", s.State, s.Reason)
	}
}
