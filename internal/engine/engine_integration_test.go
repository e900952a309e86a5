//go:build integration

package engine_test

import (
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestInfo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, err := b.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if first.Version == "" || first.APIVersion == "" || first.CPUs < 1 || first.MemoryBytes < 1<<28 || !has(first.Runtimes, "runc") ||
		first.CgroupVersion != "1" && first.CgroupVersion != "2" || first.StorageDriver == "" || !has(first.SecurityOptions, "seccomp") {
		t.Errorf("info %+v", first)
	}
	again, err := b.Info(t.Context())
	if diff := cmp.Diff(first, again); diff != "" || err != nil {
		t.Errorf("second info differs (%v):\n%s", err, diff)
	}
	t.Logf("%+v", first)
}

func TestRuntimeThatIsMissing(t *testing.T) {
	t.Parallel()
	e, err := engine.New(engine.Config{Runtime: "no-such-runtime"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.CheckLimits(t.Context()); err != nil {
		t.Errorf("an engine with limits is refused: %v", err)
	}
	_, err = e.CheckRuntimes(t.Context())
	wantCode(t, "check", err, farm.CodeConflict)
	there := setup(t)
	standard, err := there.CheckRuntimes(t.Context(), "runc")
	if err != nil || standard == "" {
		t.Errorf("default runtime: %q, %v", standard, err)
	}
	if _, err := there.CheckRuntimes(t.Context(), "runc", "runsc-missing"); farm.CodeOf(err) != farm.CodeConflict || !strings.Contains(farm.MessageOf(err), "make gvisor") {
		t.Errorf("a runtime that is missing: %v", err)
	}
}

func TestEngineThatIsDown(t *testing.T) {
	t.Parallel()
	e, err := engine.New(engine.Config{Host: "unix://" + filepath.Join(t.TempDir(), "none.sock")})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	wantCode(t, "ping", e.Ping(t.Context()), farm.CodeUnavailable)
	_, err = e.List(t.Context())
	wantCode(t, "list", err, farm.CodeUnavailable)
	_, err = e.Dial(t.Context(), "x", []string{"y"}, "")
	wantCode(t, "dial", err, farm.CodeUnavailable)
	_, err = e.NodeID(t.Context())
	wantCode(t, "node id", err, farm.CodeUnavailable)
}

// An engine that accepts the connection and never answers must not block the caller.
func TestEngineThatHangs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e, err := engine.New(engine.Config{Host: "unix://" + path})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // its expiry would be another error
	defer cancel()
	wantCode(t, "ping", e.Ping(ctx), farm.CodeUnavailable)
}

// Two processes that query a new engine at the same time agree on its id, and the id is stable.
func TestNodeIDIsAgreedOn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := make([]string, 6)
	var group sync.WaitGroup
	for i := range ids {
		group.Go(func() {
			e, err := engine.New(b.cfg)
			if err != nil {
				t.Error(err)
				return
			}
			defer e.Close()
			if ids[i], err = e.NodeID(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, id := range ids {
		if id != ids[0] || !farm.ValidID(farm.NodePrefix, id) {
			t.Errorf("ids %v", ids)
		}
	}
	if err := b.RemoveAll(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if id, err := b.NodeID(t.Context()); id != ids[0] || err != nil {
		t.Errorf("after RemoveAll the id is %s (%v), want %s", id, err, ids[0])
	}
}

func TestContainerLife(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, s := t.Context(), b.spec(t, "wait")
	id, err := b.Create(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := b.Create(ctx, s); again != id || err != nil {
		t.Errorf("second create gives %q (%v), want %q", again, err, id)
	}
	for range 2 { // a second start changes nothing
		if err := b.Start(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	c, err := b.Inspect(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if !c.Running || c.SandboxID != s.SandboxID || c.Tenant != "tenant-a" || c.Node != "node_x" || !c.Deadline.Equal(s.Deadline) ||
		c.MemoryMB != 256 || c.CPUs != 1 || c.PIDs != 64 || c.NetworkMode != "none" || !c.ReadonlyRootfs || c.Privileged ||
		c.Labels[engine.LabelRole] != engine.RoleSandbox || time.Since(c.CreatedAt) > time.Hour {
		t.Errorf("inspect %+v", c)
	}
	list, err := b.List(ctx)
	if err != nil || len(list) != 1 || list[0].ID != id || !list[0].Running || list[0].SandboxID != s.SandboxID || !list[0].Deadline.Equal(s.Deadline) {
		t.Errorf("list %+v, error %v", list, err)
	}
	for range 2 { // a missing container is not an error
		if err := b.Remove(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	_, err = b.Inspect(ctx, id)
	wantCode(t, "inspect after removal", err, farm.CodeNotFound)
	wantCode(t, "start after removal", b.Start(ctx, id), farm.CodeNotFound)
	_, err = b.Dial(ctx, id, []string{"/sandfarm/agent", "echo"}, "")
	wantCode(t, "dial after removal", err, farm.CodeNotFound)
	s.Image = b.cfg.Namespace + "/no-such-image:1"
	_, err = b.Create(ctx, s)
	wantCode(t, "create without image", err, farm.CodeNotFound)
}

func TestRemoveByTwoAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.start(t, b.spec(t, "wait"))
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if err := b.Remove(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}

// A volume may be in use for a moment longer: here by a container that RemoveAll does not list, and that goes a little later.
func TestRemoveAllAwaitsVolumes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if _, err := b.NodeID(t.Context()); err != nil {
		t.Fatal(err)
	}
	volume, user := b.cfg.Namespace+"-node", b.cfg.Namespace+"-user"
	docker := func(args ...string) {
		if out, err := exec.Command("docker", args...).CombinedOutput(); err != nil {
			t.Errorf("docker %v: %v %s", args, err, out)
		}
	}
	docker("create", "--name", user, "--volume", volume+":/data", b.image, "none")
	gone := make(chan struct{})
	time.AfterFunc(time.Second, func() {
		docker("rm", user)
		close(gone)
	})
	err := b.RemoveAll(t.Context(), true)
	if <-gone; err != nil {
		t.Error(err)
	}
	if out, err := exec.Command("docker", "volume", "inspect", volume).CombinedOutput(); err == nil {
		t.Errorf("the volume is still there: %s", out)
	}
}

func TestRemoveAllTakesOnlyItsOwn(t *testing.T) {
	t.Parallel()
	ours, theirs := setup(t), setup(t)
	ours.start(t, ours.spec(t, "wait"))
	ours.start(t, ours.spec(t, "wait"))
	id := theirs.start(t, theirs.spec(t, "wait"))
	if err := ours.RemoveAll(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if left, err := ours.List(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, error %v", left, err)
	}
	if c, err := theirs.Inspect(t.Context(), id); err != nil || !c.Running {
		t.Errorf("the other farm's sandbox: %+v, error %v", c, err)
	}
}

// With the proxy in between, the farm does everything that it does with the engine itself.
func TestThroughTheProxy(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"TestInfo": TestInfo, "TestRuntimeThatIsMissing": TestRuntimeThatIsMissing, "TestNodeIDIsAgreedOn": TestNodeIDIsAgreedOn,
		"TestContainerLife": TestContainerLife, "TestRemoveByTwoAtOnce": TestRemoveByTwoAtOnce, "TestEnsureAgent": TestEnsureAgent,
		"TestDialCarriesBytesBothWays": TestDialCarriesBytesBothWays, "TestDialLocalReachesTheContainersOwnSocket": TestDialLocalReachesTheContainersOwnSocket,
		"TestDialTellsWhyTheCommandEnded": TestDialTellsWhyTheCommandEnded, "TestRemoveAllTakesOnlyItsOwn": TestRemoveAllTakesOnlyItsOwn,
		"TestBuildAndImages": TestBuildAndImages, "TestImportThatIsCutShort": TestImportThatIsCutShort,
		"TestLaterGenerationTakesTheName": TestLaterGenerationTakesTheName, "TestGenerationsAtOnce": TestGenerationsAtOnce,
		"TestUpdateChangesTheLimits": TestUpdateChangesTheLimits, "TestNotesOutliveTheWorker": TestNotesOutliveTheWorker,
		"TestSandboxFromInside": TestSandboxFromInside, "TestSandboxStopsForks": TestSandboxStopsForks, "TestSandboxAtItsMemoryLimit": TestSandboxAtItsMemoryLimit,
		"TestSandboxesAreLimitedTogether": TestSandboxesAreLimitedTogether, "TestUserIDsAreUnique": TestUserIDsAreUnique, "TestUsageOfAContainer": TestUsageOfAContainer,
		"TestCheckpointKeepsMemory": TestCheckpointKeepsMemory,
	} {
		t.Run(name, test)
	}
}
