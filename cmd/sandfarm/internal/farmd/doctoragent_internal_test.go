package farmd

import (
	"strings"
	"testing"
)

// A program from go install has no agent: doctor says so before a sandbox fails.
func TestDoctorReportsAMissingAgent(t *testing.T) {
	t.Parallel()
	if f := doctorAgent("pdp11"); f.Status != StatusProblem || !strings.Contains(f.Found, "linux/pdp11") || !strings.Contains(f.Advice, "make build") {
		t.Errorf("%+v", f)
	}
}
