package farmd

import (
	"errors"
	"strings"
	"testing"
)

// An operator learns that sandboxes cannot hibernate before a caller does.
func TestDoctorNamesAnEngineWithoutCheckpoints(t *testing.T) {
	t.Parallel()
	if f := doctorCheckpoints("runsc", nil); f.Status != StatusOK {
		t.Errorf("%+v", f)
	}
	if f := doctorCheckpoints("runsc", errors.New("set it")); f.Status != StatusNote || !strings.Contains(f.Found, "set it") {
		t.Errorf("%+v", f)
	}
}
