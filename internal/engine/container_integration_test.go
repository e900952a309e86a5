//go:build integration

package engine_test

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestRunningNeedsEveryLabel(t *testing.T) {
	t.Parallel()
	e := setup(t)
	spec := e.spec(t, "wait")
	e.start(t, spec)
	still := e.spec(t, "wait")
	if _, err := e.Create(t.Context(), still); err != nil {
		t.Fatal(err)
	}
	mine := engine.LabelSandbox + "=" + spec.SandboxID
	for name, c := range map[string]struct {
		labels []string
		want   bool
	}{
		"One":        {[]string{mine}, true},
		"Both":       {[]string{mine, engine.LabelRole + "=" + engine.RoleSandbox}, true},
		"OneWrong":   {[]string{mine, engine.LabelRole + "=" + engine.RoleHelper}, false},
		"NotStarted": {[]string{engine.LabelSandbox + "=" + still.SandboxID}, false},
		"None":       {[]string{engine.LabelSandbox + "=sbx_none"}, false},
	} {
		got, err := e.Running(t.Context(), c.labels...)
		if err != nil || got != c.want {
			t.Errorf("%s: %v, error %v; want %v", name, got, err, c.want)
		}
	}
	if _, err := e.Running(t.Context()); err == nil {
		t.Error("no labels: no error, although this matches every container")
	}
}

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

// Sandboxes that choose the same uid get different ones, also when several workers create them at once, and a second create of one
// returns the container of the first.
func TestUserIDsAreUnique(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const at = 6
	specs, ids, errs := make([]engine.Spec, at), make([]string, at), make([]error, at)
	for i := range specs {
		specs[i] = b.spec(t, "wait")
		specs[i].UID, specs[i].UniqueUID = engine.FirstUID+engine.UIDs-1, true
	}
	var group sync.WaitGroup
	for i := range specs {
		group.Go(func() { ids[i], errs[i] = b.Create(t.Context(), specs[i]) })
	}
	group.Wait()
	seen := map[string]int{}
	for i, id := range ids {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		c, err := b.Inspect(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		uid := c.Labels[engine.LabelUID]
		if other, ok := seen[uid]; ok {
			t.Errorf("sandboxes %d and %d have the uid %s", other, i, uid)
		}
		seen[uid] = i
		if n, err := strconv.Atoi(uid); err != nil || n < engine.FirstUID || n >= engine.FirstUID+engine.UIDs {
			t.Errorf("uid %s", uid)
		}
		if again, err := b.Create(t.Context(), specs[i]); err != nil || again != id {
			t.Errorf("the second create of sandbox %d: %s, %v; want %s", i, again, err, id)
		}
	}
	if err := b.Start(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	c, err := b.Inspect(t.Context(), ids[0])
	if err != nil {
		t.Fatal(err)
	}
	uid := c.Labels[engine.LabelUID]
	f := b.facts(t, ids[0])
	if want := fmt.Sprintf("%[1]s %[1]s %[1]s %[1]s", uid); f.Status["Uid"] != want || f.Init["Gid"] != want {
		t.Errorf("it runs as %q and %q, want %s", f.Status["Uid"], f.Init["Gid"], want)
	}
	if f.Writable["/workspace"] != "" {
		t.Errorf("its workspace: %s", f.Writable["/workspace"])
	}
}
