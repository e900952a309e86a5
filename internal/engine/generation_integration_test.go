//go:build integration

package engine_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// ofGeneration is a spec of a sandbox's generation; "" has no label.
func ofGeneration(s engine.Spec, generation string) engine.Spec {
	s.Labels = map[string]string{}
	if generation != "" {
		s.Labels[engine.LabelGeneration] = generation
	}
	return s
}

// A worker that is late may create the container of an earlier generation under the sandbox's name. The create of the later one replaces it,
// also if it runs, and the late worker does not get the container of the later one. Both used to get whichever container was there.
func TestLaterGenerationTakesTheName(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.spec(t, "wait")
	for _, c := range []struct{ first, second string }{{"", "2"}, {"2", "10"}} {
		late := b.start(t, ofGeneration(s, c.first))
		id, err := b.Create(t.Context(), ofGeneration(s, c.second))
		if err != nil || id == late {
			t.Fatalf("create of generation %q over %q = %s, %v", c.second, c.first, id, err)
		}
		_, err = b.Inspect(t.Context(), late)
		wantCode(t, "inspect the earlier one", err, farm.CodeNotFound)
		if again, err := b.Create(t.Context(), ofGeneration(s, c.second)); err != nil || again != id {
			t.Errorf("the same create again = %s, %v, want %s", again, err, id)
		}
		if _, err := b.Create(t.Context(), ofGeneration(s, c.first)); !errors.Is(err, engine.ErrNewer) {
			t.Errorf("a late create of generation %q over %q = %v, want ErrNewer", c.first, c.second, err)
		}
		if got, err := b.Inspect(t.Context(), id); err != nil || got.Labels[engine.LabelGeneration] != c.second {
			t.Errorf("the container is %+v, %v", got, err)
		}
	}
}

// Creates of several generations at once: the last one's container is what is left. The engine takes the name before it shows the container: a
// create that meets only the name waits. It used to fail after three tries.
func TestGenerationsAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.spec(t, "wait")
	var wg sync.WaitGroup
	for _, generation := range []string{"1", "2", "3"} {
		wg.Go(func() {
			_, err := b.Create(t.Context(), ofGeneration(s, generation))
			if generation == "3" && err != nil {
				t.Errorf("the last generation: %v", err)
			}
		})
	}
	wg.Wait()
	if got, err := b.Inspect(t.Context(), b.Name(s.SandboxID)); err != nil || got.Labels[engine.LabelGeneration] != "3" {
		t.Errorf("the container is %+v, %v", got, err)
	}
}
