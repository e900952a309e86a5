//go:build integration

package engine_test

import (
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// A running container has counters that grow; one that does not run, or does not exist, has none.
func TestUsageOfAContainer(t *testing.T) {
	t.Parallel()
	e := setup(t)
	spec := e.spec(t, "wait")
	id := e.start(t, spec)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		u, ok, err := e.Usage(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if ok && u.Container == id && u.CPU > 0 && u.Memory > 0 && u.Memory < 8<<30 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("Usage = %+v, %v", u, ok)
		}
	}
	still := e.spec(t, "wait")
	stopped, err := e.Create(t.Context(), still)
	if err != nil {
		t.Fatal(err)
	}
	if u, ok, err := e.Usage(t.Context(), stopped); ok || err != nil {
		t.Errorf("a container that was not started: %+v, %v, %v", u, ok, err)
	}
	if _, _, err := e.Usage(t.Context(), "no-such-container"); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("a container that does not exist: %v", err)
	}
}
