package engine

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// A sandbox with little CPU time that spins outlives its kill for a while, and its close failed for that.
func TestRemoveWaitsForAKilledContainer(t *testing.T) {
	t.Parallel()
	const (
		old = "Could not kill running container c0ffee, cannot remove - container c0ffee PID 7 is zombie and can not be killed. Use the --init option when " +
			"creating containers to run an init inside the container that forwards signals and reaps processes"
		zombie = "cannot remove container \"c0ffee\": could not kill container: container c0ffee PID 7 is zombie and can not be killed. Use the --init option"
		silent = "cannot remove container \"c0ffee\": could not kill container: tried to kill container, but did not receive an exit event"
		taken  = "removal of container c0ffee is already in progress"
	)
	type answer struct {
		status int
		text   string
	}
	for name, c := range map[string]struct {
		answers []answer // the last one is repeated
		calls   int
		code    farm.Code
	}{
		"Removed":       {[]answer{{http.StatusNoContent, ""}}, 1, ""},
		"Gone":          {[]answer{{http.StatusNotFound, "no such container"}}, 1, ""},
		"Zombie":        {[]answer{{http.StatusInternalServerError, old}, {http.StatusInternalServerError, zombie}, {http.StatusNoContent, ""}}, 3, ""},
		"NoExitEvent":   {[]answer{{http.StatusInternalServerError, silent}, {http.StatusNoContent, ""}}, 2, ""},
		"AnotherCaller": {[]answer{{http.StatusConflict, taken}, {http.StatusConflict, taken}, {http.StatusNotFound, "no such container"}}, 3, ""},
		"AnotherFailed": {[]answer{{http.StatusConflict, taken}, {http.StatusInternalServerError, zombie}, {http.StatusNoContent, ""}}, 3, ""},
		"Broken":        {[]answer{{http.StatusInternalServerError, "driver \"overlay2\" failed to remove root filesystem"}}, 1, farm.CodeInternal},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			e := remover(t, func(w http.ResponseWriter) {
				a := c.answers[min(calls, len(c.answers)-1)]
				calls++
				w.WriteHeader(a.status)
				if a.status != http.StatusNoContent {
					_ = json.NewEncoder(w).Encode(map[string]string{"message": a.text})
				}
			})
			if err := e.Remove(t.Context(), "c0ffee"); (err == nil) != (c.code == "") || err != nil && farm.CodeOf(err) != c.code || calls != c.calls {
				t.Errorf("%d calls, want %d: %v", calls, c.calls, err)
			}
		})
	}
}

// A container that never ends is killed again until the caller gives up, who learns what the engine said.
func TestRemoveEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	e := remover(t, func(w http.ResponseWriter) {
		if calls++; calls == 3 {
			cancel()
		}
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, `{"message":"could not kill container: it is zombie"}`)
	})
	if err := e.Remove(ctx, "c0ffee"); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "it is zombie") || calls != 3 {
		t.Errorf("%d calls: %v", calls, err)
	}
}

// remover is an Engine whose removals are answered by answer.
func remover(t *testing.T, answer func(http.ResponseWriter)) *Engine {
	t.Helper()
	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodDelete {
			answer(w)
		}
	}))
	t.Cleanup(fake.Close)
	e, err := New(Config{Host: "tcp://" + strings.TrimPrefix(fake.URL, "http://"), Namespace: "farm"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}
