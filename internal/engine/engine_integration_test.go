//go:build integration

package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
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

func TestBuildAndImages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, name := t.Context(), strings.ReplaceAll(b.cfg.Namespace, "-", "")
	ref := b.cfg.Namespace + "/built"
	t.Cleanup(func() {
		for _, tag := range []string{":h1", ":latest"} {
			if err := b.RemoveImage(context.Background(), ref+tag); err != nil {
				t.Error(err)
			}
		}
	})
	var progress []farm.Progress
	err := b.Build(ctx, engine.BuildSpec{
		Context: fstest.MapFS{
			"Dockerfile":   {Data: []byte("ARG BASE=nothing\nFROM ${BASE}\nARG COLOUR\nLABEL colour=$COLOUR\nCOPY dir/file /file\nVOLUME /data\n")},
			"dir/file":     {Data: []byte("content")},
			"dir/sub/more": {Data: []byte("content")},
		},
		Tags: []string{ref + ":h1", ref + ":latest"}, Args: map[string]string{"BASE": b.image, "COLOUR": "blue"}, Network: "none",
		Labels: map[string]string{engine.LabelImage: name, engine.LabelLanguages: "python, bash", engine.LabelDescription: "A test."},
	}, func(p farm.Progress) { progress = append(progress, p) })
	testbed.Must(t, err)
	testbed.Check(t, len(progress) != 0 && progress[len(progress)-1].Total >= 5, "progress %+v", progress)
	if there, err := b.HasImage(ctx, ref+":h1"); !there || err != nil {
		t.Errorf("built image exists: %v, error %v", there, err)
	}
	if there, err := b.HasImage(ctx, ref+":h2"); there || err != nil {
		t.Errorf("image that was never built exists: %v, error %v", there, err)
	}
	images, err := b.Images(ctx)
	testbed.Must(t, err)
	found := 0
	for _, i := range images {
		if i.Name == name {
			found++
			if i.Ref != ref+":h1" || !strings.HasPrefix(i.ID, "sha256:") || i.Description != "A test." || cmp.Diff([]string{"python", "bash"}, i.Languages) != "" || i.CreatedAt.IsZero() || !slices.Equal(i.Volumes, []string{"/data"}) {
				t.Errorf("image %+v", i)
			}
		}
	}
	testbed.Diff(t, "image is listed, times", 1, found)
	err = b.Build(ctx, engine.BuildSpec{
		Context: fstest.MapFS{"Dockerfile": {Data: []byte("ARG BASE\nFROM ${BASE}\nRUN nothing-to-run-it\n")}},
		Args:    map[string]string{"BASE": b.image}, Network: "none",
	}, nil)
	testbed.Check(t, err != nil && strings.Contains(err.Error(), "Step 3/3"), "failed build: %v, want the last lines", err)
}

func TestImportThatIsCutShort(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cut := errors.New("the tar is truncated")
	err := b.Import(t.Context(), b.cfg.Namespace+"/cut:1", io.MultiReader(bytes.NewReader(make([]byte, 512)), broken{cut}))
	testbed.Check(t, err != nil, "import of half a tar returned no error")
	there, err := b.HasImage(t.Context(), b.cfg.Namespace+"/cut:1")
	testbed.Check(t, !there && err == nil, "image of half a tar exists: %v, error %v", there, err)
}

type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

// The agent's volume is filled once, also for callers in several processes, and filled again after an interrupted fill.
func TestEnsureAgent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			e, err := engine.New(b.cfg)
			if err != nil {
				t.Error(err)
				return
			}
			defer e.Close()
			volume, err := e.EnsureAgent(t.Context(), "v1", copies, b.programs, b.image)
			testbed.Check(t, err == nil && volume == b.cfg.Namespace+"-agent-v1", "volume %q, error %v", volume, err)
		})
	}
	group.Wait()
	id := b.start(t, b.spec(t, "wait"))
	got := string(b.output(t, id, "forks"))
	testbed.Check(t, got != "", "the agent of the volume does not run")
	never := func(context.Context) ([]farm.AgentProgram, error) { return nil, errors.New("asked for what is there") }
	if _, err := b.EnsureAgent(t.Context(), "v1", copies, never, b.image); err != nil {
		t.Error(err)
	}
	if _, err := b.EnsureAgent(t.Context(), "v3", copies, never, b.image); err == nil {
		t.Error("a volume was filled with nothing")
	}
	testbed.Must(t, b.Remove(t.Context(), id))
	testbed.Must(t, b.RemoveAll(t.Context(), false)) // the note of the old fill must not count for a new volume
	b.facts(t, b.start(t, b.spec(t, "wait")))
	_, err := b.EnsureAgent(t.Context(), "v2", copies, b.programs, b.cfg.Namespace+"/none:1")
	wantCode(t, "fill without image", err, farm.CodeNotFound)
}

// Sandboxes of one kernel share the agent's volume. What they could open, they could lock and watch.
func TestAgentsThatCanOnlyBeExecuted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for runtime, want := range map[string]string{"runc": "EACCES", copies: ""} {
		volume, err := b.EnsureAgent(t.Context(), "v1", runtime, b.programs, b.image)
		testbed.Must(t, err)
		s := b.spec(t, "wait")
		s.Agent = volume
		if runtime == "runc" && enginetest.GVisor() {
			id, err := b.Create(t.Context(), s)
			if err == nil {
				err = b.Start(t.Context(), id)
			}
			testbed.Check(t, err != nil, "gVisor executed what its user may not read: one volume is enough, remove ReadExecute")
			continue
		}
		opened := map[string]string{
			"execute": "", "open /sandfarm": want, "open /sandfarm/agent": want, "watch /sandfarm": want, "watch /sandfarm/agent": want,
		}
		testbed.Diff(t, fmt.Sprintf("for %s", runtime), opened, b.facts(t, b.start(t, s)).Agent)
	}
}

func TestDialLocalReachesTheContainersOwnSocket(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, two := b.start(t, b.spec(t, "listen")), b.start(t, b.spec(t, "wait"))
	conn, err := b.DialLocal(t.Context(), one, "@probe")
	if enginetest.GVisor() {
		testbed.Check(t, errors.Is(err, engine.ErrNotLocal), "a socket of gVisor, which no process of the host reaches: %v", err)
		return
	}
	testbed.Must(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("hello"))
	testbed.Must(t, err)
	got := make([]byte, len("0\nhello"))
	_, err = io.ReadFull(conn, got)
	testbed.Check(t, err == nil && string(got) == "0\nhello", "read %q, %v", got, err)
	_, err = b.DialLocal(t.Context(), two, "@probe")
	testbed.Check(t, errors.Is(err, engine.ErrNotLocal), "the socket of one container in the namespace of another: %v", err)
	_, err = b.DialLocal(t.Context(), one, "/run/sandfarm/agent.sock")
	testbed.Check(t, errors.Is(err, engine.ErrNotLocal), "a path of the container's file system: %v", err)
	testbed.Must(t, b.Remove(t.Context(), two))
	_, err = b.DialLocal(t.Context(), two, "@probe")
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "a container that is gone: %v", err)
}

// The port of one container is not that of another one, nor of this machine, and a stream that is closed reaches none.
func TestAStreamHasThePortsOfItsContainer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, two := b.start(t, b.spec(t, "serve")), b.start(t, b.spec(t, "listen"))
	with, err := b.DialLocal(t.Context(), one, "@probe")
	if enginetest.GVisor() {
		testbed.Check(t, errors.Is(err, engine.ErrNotLocal), "a namespace of gVisor: %v", err)
		return
	}
	testbed.Must(t, err)
	without, err := b.DialLocal(t.Context(), two, "@probe")
	testbed.Must(t, err)
	defer without.Close()
	var conn *net.TCPConn
	for end := time.Now().Add(time.Minute); conn == nil; { // until it listens
		if conn, err = with.DialTCP(t.Context(), "127.0.0.1:7000"); err != nil && (!errors.Is(err, syscall.ECONNREFUSED) || time.Now().After(end)) {
			t.Fatal(err)
		}
	}
	defer conn.Close()
	got, err := io.ReadAll(conn)
	testbed.Check(t, err == nil && string(got) == "inside", "read %q, %v", got, err)
	_, err = without.DialTCP(t.Context(), "127.0.0.1:7000")
	testbed.Check(t, errors.Is(err, syscall.ECONNREFUSED), "the port of one container in the namespace of another: %v", err)
	testbed.Must(t, with.Close())
	_, err = with.DialTCP(t.Context(), "127.0.0.1:7000")
	testbed.Check(t, err != nil && !errors.Is(err, syscall.ECONNREFUSED), "a stream that is closed: %v", err)
}

func TestDialTellsWhyTheCommandEnded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.start(t, b.spec(t, "wait"))
	s, err := b.Dial(t.Context(), id, []string{"/sandfarm/agent", "fail"}, "")
	testbed.Must(t, err)
	defer s.Close()
	_, err = io.ReadAll(s)
	testbed.Check(t, err != nil && strings.Contains(err.Error(), "no such luck"), "error %v lacks stderr", err)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = b.Dial(gone, id, []string{"/sandfarm/agent", "echo"}, "")
	testbed.Check(t, errors.Is(err, context.Canceled), "dial of a caller that is gone: %v", err)
}

// One worker of a node reads images at a time. What a worker that was killed has left is removed when it is too old to be another's.
func TestPreloadOfAnotherWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	name := b.cfg.Namespace + "-preload"
	out, err := exec.Command("docker", "create", "--name", name, "--label", engine.LabelNamespace+"="+b.cfg.Namespace, "--label", engine.LabelRole+"="+engine.RoleHelper, b.image, "x").CombinedOutput()
	testbed.Require(t, err == nil, "%v: %s", err, out)
	made := time.Now()
	testbed.Must(t, b.Preload(t.Context(), b.image))
	there := func() bool { return exec.Command("docker", "inspect", name).Run() == nil }
	for _, c := range []struct {
		age  time.Duration
		want bool
	}{{engine.PreloadLasts - time.Minute, true}, {engine.PreloadLasts + time.Minute, false}, {0, false}} {
		testbed.Must(t, b.EndDeadPreload(t.Context(), made.Add(c.age)))
		testbed.Check(t, there() == c.want, "after %s the container is there: %v", c.age, !c.want)
	}
	testbed.Must(t, b.Preload(t.Context(), b.image))
	testbed.Check(t, !there(), "a Preload has left its container")
}
