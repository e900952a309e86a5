package farmd

import (
	"testing"

	"github.com/sandfarm/sandfarm/internal/engine"
)

// An operator learns that sandboxes cannot hibernate before a caller does.
func TestDoctorNamesAnEngineWithoutCheckpoints(t *testing.T) {
	t.Parallel()
	for experimental, want := range map[bool]string{true: StatusOK, false: StatusNote} {
		if f := doctorCheckpoints("runsc", engine.Info{Experimental: experimental}); f.Status != want || (f.Advice == "") != experimental {
			t.Errorf("experimental %v: %+v", experimental, f)
		}
	}
}
