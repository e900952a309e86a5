//go:build integration

package engine_test

import (
	"testing"

	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Where gVisor is the engine's default runtime, a sandbox that names none has the profile for gVisor.
func TestGVisorIsTheEnginesDefault(t *testing.T) {
	t.Parallel()
	d := enginetest.New(t, enginetest.Options{Args: append(runsc(t), "--default-runtime", "runsc")})
	b := setupOn(t, d.Host)
	s := b.spec(t, "remember")
	s.Runtime = ""
	id := b.start(t, s)
	if c, err := b.Inspect(t.Context(), id); err != nil || c.Runtime != "runsc" || !c.Running {
		t.Errorf("%+v, %v", c, err)
	}
	wantCode(t, "an update of limits", b.Update(t.Context(), id, "", farm.Resources{}), farm.CodeConflict)
}
