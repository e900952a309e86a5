//go:build integration

package engine_test

import (
	"fmt"
	"strconv"
	"sync"
	"testing"

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

// Sandboxes that choose the same uid get different ones, also when several workers create them at once, and a second create of one
// returns the container of the first.
func TestUserIDsAreUnique(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const at = 6
	specs, ids, errs := make([]farm.ContainerSpec, at), make([]string, at), make([]error, at)
	for i := range specs {
		specs[i] = b.spec(t, "wait")
		for uid := engine.PreferredUID(specs[0].SandboxID); engine.PreferredUID(specs[i].SandboxID) != uid; {
			specs[i].SandboxID = farm.NewID(farm.SandboxPrefix)
		}
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
