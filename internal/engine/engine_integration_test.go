//go:build integration

package engine_test

import (
	"errors"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestInfo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	testbed.Must(t, b.Ping(t.Context()))
	first, err := b.Info(t.Context())
	testbed.Must(t, err)
	if first.Version == "" || first.APIVersion == "" || first.CPUs < 1 || first.MemoryBytes < 1<<28 || !has(first.Runtimes, "runc") ||
		first.CgroupVersion != "1" && first.CgroupVersion != "2" || first.StorageDriver == "" || !has(first.SecurityOptions, "seccomp") {
		t.Errorf("info %+v", first)
	}
	again, err := b.Info(t.Context())
	diff := cmp.Diff(first, again)
	testbed.Check(t, diff == "" && err == nil, "second info differs (%v):\n%s", err, diff)
	t.Logf("%+v", first)
}

func TestRuntimeThatIsMissing(t *testing.T) {
	t.Parallel()
	e, err := engine.New(engine.Config{Runtime: "no-such-runtime"})
	testbed.Must(t, err)
	defer e.Close()
	if err := e.CheckLimits(t.Context()); err != nil {
		t.Errorf("an engine with limits is refused: %v", err)
	}
	_, err = e.CheckRuntimes(t.Context())
	wantCode(t, "check", err, farm.CodeConflict)
	there := setup(t)
	standard, err := there.CheckRuntimes(t.Context(), "runc")
	testbed.Check(t, err == nil && standard != "", "default runtime: %q, %v", standard, err)
	if _, err := there.CheckRuntimes(t.Context(), "runc", "runsc-missing"); farm.CodeOf(err) != farm.CodeConflict || !strings.Contains(farm.MessageOf(err), "make gvisor") {
		t.Errorf("a runtime that is missing: %v", err)
	}
}

// What the engine has of the profile, and of which TestSandboxFromInside sees the effects.
func TestProfileReachesTheEngine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.start(t, b.spec(t, "wait"))
	out, err := exec.Command("docker", "inspect", "--format", `{{.HostConfig.NetworkMode}} {{.HostConfig.ReadonlyRootfs}} {{.HostConfig.Privileged}} {{index .Config.Labels "sandfarm.role"}}`, id).CombinedOutput()
	got := strings.TrimSpace(string(out))
	testbed.Check(t, err == nil && got == "none true false "+engine.RoleSandbox, "%q, %v", got, err)
}

// Notes go with the sandboxes, and the node keeps its id.
func TestRemoveAllKeepsTheNode(t *testing.T) {
	t.Parallel()
	b := setup(t)
	before, err := b.NodeID(t.Context())
	testbed.Must(t, err)
	testbed.Must(t, b.Note(t.Context(), "sbx_1", "tenant-a", nil))
	testbed.Must(t, b.RemoveAll(t.Context(), false))
	list, err := b.Notes(t.Context())
	testbed.Check(t, err == nil && len(list) == 0, "left after RemoveAll: %v, %v", list, err)
	after, err := b.NodeID(t.Context())
	testbed.Check(t, after == before && err == nil, "after RemoveAll the id is %s (%v), want %s", after, err, before)
}

// A volume may be in use by a container that the engine does not list: one that goes a little later, or one of this farm that the engine completes
// after its process has ended. RemoveAll used to remove only the containers that it found first.
func TestRemoveAllAwaitsVolumes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.NodeID(t.Context())
	testbed.Must(t, err)
	volume, user, late := b.cfg.Namespace+"-node", b.cfg.Namespace+"-user", b.cfg.Namespace+"-late"
	docker := func(args ...string) {
		out, err := exec.Command("docker", args...).CombinedOutput()
		testbed.Check(t, err == nil, "docker %v: %v %s", args, err, out)
	}
	docker("create", "--name", user, "--volume", volume+":/data", b.image, "none")
	var refused sync.Once
	b.cfg.Observe = func(call string, _ time.Duration, err error) {
		if call == "remove volume" && farm.CodeOf(err) == farm.CodeConflict {
			refused.Do(func() {
				docker("create", "--name", late, "--label", engine.LabelNamespace+"="+b.cfg.Namespace, "--volume", volume+":/data", b.image, "none")
				docker("rm", user)
			})
		}
	}
	e, err := engine.New(b.cfg)
	testbed.Must(t, err)
	testbed.Must(t, errors.Join(e.RemoveAll(t.Context(), true), e.Close()))
	for _, left := range [][]string{{"volume", "inspect", volume}, {"container", "inspect", late}} {
		out, err := exec.Command("docker", left...).CombinedOutput()
		testbed.Check(t, err != nil, "still there: %s", out)
	}
}

func TestRemoveAllTakesOnlyItsOwn(t *testing.T) {
	t.Parallel()
	ours, theirs := setup(t), setup(t)
	ours.start(t, ours.spec(t, "wait"))
	ours.start(t, ours.spec(t, "wait"))
	id := theirs.start(t, theirs.spec(t, "wait"))
	testbed.Must(t, ours.RemoveAll(t.Context(), true))
	left, err := ours.List(t.Context())
	testbed.Check(t, err == nil && len(left) == 0, "left over: %v, error %v", left, err)
	c, err := theirs.Inspect(t.Context(), id)
	testbed.Check(t, err == nil && c.Running, "the other farm's sandbox: %+v, error %v", c, err)
}

// With the proxy in between, the farm does everything that it does with the engine itself. Tests whose calls others here make, too, are left out.
func TestThroughTheProxy(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"TestConformance": TestConformance, "TestInfo": TestInfo, "TestRuntimeThatIsMissing": TestRuntimeThatIsMissing,
		"TestRemoveAllKeepsTheNode": TestRemoveAllKeepsTheNode, "TestEnsureAgent": TestEnsureAgent, "TestDialLocalReachesTheContainersOwnSocket": TestDialLocalReachesTheContainersOwnSocket,
		"TestDialTellsWhyTheCommandEnded": TestDialTellsWhyTheCommandEnded,
		"TestBuildAndImages":              TestBuildAndImages, "TestImportThatIsCutShort": TestImportThatIsCutShort,
		"TestSandboxFromInside": TestSandboxFromInside, "TestSandboxesAreLimitedTogether": TestSandboxesAreLimitedTogether, "TestUserIDsAreUnique": TestUserIDsAreUnique,
		"TestCheckpointKeepsMemory": TestCheckpointKeepsMemory,
	} {
		t.Run(name, test)
	}
}

// Where gVisor is the engine's default runtime, a sandbox that names none has the profile for gVisor.
func TestGVisorIsTheEnginesDefault(t *testing.T) {
	t.Parallel()
	d := enginetest.New(t, enginetest.Options{Args: append(runsc(t), "--default-runtime", "runsc")})
	b := setupOn(t, d.Host)
	s := b.spec(t, "remember")
	s.Runtime = ""
	id := b.start(t, s)
	c, err := b.Inspect(t.Context(), id)
	testbed.Check(t, err == nil && c.Runtime == "runsc" && c.Running, "%+v, %v", c, err)
	wantCode(t, "an update of limits", b.Update(t.Context(), id, "", farm.Resources{}), farm.CodeConflict)
}

// The cost of a sandbox from Create to Remove.
func BenchmarkCreateStartRemove(b *testing.B) {
	f := setup(b)
	s := f.spec(b, "wait")
	for b.Loop() {
		s.SandboxID = farm.NewID(farm.SandboxPrefix)
		id := f.start(b, s)
		b.StopTimer()
		testbed.Must(b, f.Remove(b.Context(), id))
		b.StartTimer()
	}
}

// How fast bytes come out of an exec stream.
func BenchmarkDialThroughput(b *testing.B) {
	f := setup(b)
	id := f.start(b, f.spec(b, "wait"))
	const mib = 64
	b.SetBytes(mib << 20)
	for b.Loop() {
		s, err := f.Dial(b.Context(), id, []string{"/sandfarm/agent", "flood", "64"}, "")
		testbed.Must(b, err)
		n, err := io.Copy(io.Discard, s)
		testbed.Require(b, err == nil && n == mib<<20, "%d bytes, error %v", n, err)
		_ = s.Close()
	}
}

// How long it takes until a stream into a sandbox is open and its program has answered.
func BenchmarkDialOpen(b *testing.B) {
	f := setup(b)
	id := f.start(b, f.spec(b, "wait"))
	for b.Loop() {
		s, err := f.Dial(b.Context(), id, []string{"/sandfarm/agent", "echo"}, "")
		testbed.Must(b, err)
		_, err = s.Write([]byte("x"))
		testbed.Must(b, err)
		_, err = io.ReadFull(s, make([]byte, 1))
		testbed.Must(b, err)
		_ = s.Close()
	}
}

// The same with the engine proxy in between.
func BenchmarkThroughTheProxy(b *testing.B) {
	b.Run("CreateStartRemove", BenchmarkCreateStartRemove)
	b.Run("DialOpen", BenchmarkDialOpen)
	b.Run("DialThroughput", BenchmarkDialThroughput)
}
