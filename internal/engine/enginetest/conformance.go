package enginetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/node"
)

// Subject is the engine of a farm of its own, for Conformance.
type Subject struct {
	node.Engine
	// Spec describes another sandbox of the farm. Its PID 1, and the command /sandfarm/agent in it, is the program internal/engine/testdata/probe,
	// with these arguments. It has every field but Generation, GPUs, GPU and Runtime.
	Spec func(t testing.TB, args ...string) farm.ContainerSpec
	// Again connects to the engine once more, as another worker of the farm does.
	Again func(t testing.TB) node.Engine
	// Silent connects to an engine that is down, and to one that accepts connections and never answers.
	Silent func(t testing.TB) (down, hangs node.Engine)

	// What the engine lacks. The zero value is an engine that lacks nothing.

	// Late says that List and Notes may miss for a moment what another worker did. What the same worker did they never miss.
	Late bool
	// NoProcessLimit says that the limit of processes is not the engine's, but that of PID 1, and does not change.
	NoProcessLimit bool
}

// Conformance checks that an engine is what workers need (node.Engine). newEngine makes a farm in it, which ends with its test.
func Conformance(t *testing.T, newEngine func(testing.TB) *Subject) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, *Subject){
		"Life": life, "Ends": ends, "MemoryLimit": memoryLimit, "ProcessLimit": processLimit, "Generations": generations, "GenerationsAtOnce": generationsAtOnce,
		"RemoveAtOnce": removeAtOnce, "Stream": stream, "Socket": socket, "Usage": usage, "Preload": preload, "Update": update, "Notes": notes, "Identity": identity, "Silence": silence,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newEngine(t))
		})
	}
	t.Run("FarmsApart", func(t *testing.T) {
		t.Parallel()
		farmsApart(t, newEngine(t), newEngine(t))
	})
}

// limits are the resources that Inspect reports.
func (e *Subject) limits(r farm.Resources) farm.Resources {
	r.DiskMB = 0
	if e.NoProcessLimit {
		r.PIDs = 0
	}
	return r
}

// soon checks what another worker lists: at once, or, if the engine is late, until it is right.
func (e *Subject) soon(t *testing.T, what string, right func() bool) {
	t.Helper()
	if e.Late {
		testbed.Until(t, what, right)
	} else if !right() {
		t.Errorf("not so: %s", what)
	}
}

// life is that of a container, from its create to what is left of it, which is nothing.
func life(t *testing.T, e *Subject) {
	ctx, s := t.Context(), e.Spec(t, "wait")
	other := e.Again(t)
	id, err := e.Create(ctx, s)
	testbed.Must(t, err)
	if again, err := other.Create(ctx, s); again != id || err != nil {
		t.Errorf("second create gives %q (%v), want %q", again, err, id)
	}
	want := farm.Container{
		ID: id, SandboxID: s.SandboxID, Generation: 1, Tenant: s.Tenant, Node: s.Node, Deadline: s.Deadline,
		Resources: e.limits(s.Resources),
	}
	same := func(what string, want, got farm.Container, err error) {
		t.Helper()
		diff := cmp.Diff(want, got, cmpopts.IgnoreFields(farm.Container{}, "Labels", "Runtime"))
		testbed.Check(t, diff == "" && err == nil, "%s (-want +got), error %v:\n%s", what, err, diff)
		for name, value := range s.Labels {
			testbed.Diff(t, fmt.Sprintf("%s: label %s", what, name), value, got.Labels[name])
		}
	}
	got, err := e.Inspect(ctx, id)
	same("a created container", want, got, err)
	for range 2 { // a second start changes nothing
		testbed.Must(t, e.Start(ctx, id))
	}
	want.Running = true
	got, err = other.Inspect(ctx, e.Name(s.SandboxID))
	same("a container that runs, by its name", want, got, err)
	var list []farm.Container
	e.soon(t, "another worker lists the container, which runs", func() bool {
		list, err = other.List(ctx)
		return err != nil || len(list) == 1 && list[0].Running
	})
	testbed.Require(t, len(list) == 1, "list %+v, error %v", list, err)
	want.Resources = farm.Resources{}
	same("a container in the list", want, list[0], err)
	for range 2 { // a missing container is not an error
		testbed.Must(t, e.Remove(ctx, id))
	}
	_, err = e.Inspect(ctx, id)
	wantCode(t, "inspect after removal", err, farm.CodeNotFound)
	wantCode(t, "start after removal", e.Start(ctx, id), farm.CodeNotFound)
	_, err = dial(ctx, e, id, "echo")
	wantCode(t, "dial after removal", err, farm.CodeNotFound)
	s.Image = "sandfarm-test/no-such-image:1"
	if id, err = e.Create(ctx, s); err == nil {
		err = e.Start(ctx, id)
	}
	wantCode(t, "a container without an image", err, farm.CodeNotFound)
}

// ends is how a worker learns that the program of a container has ended.
func ends(t *testing.T, e *Subject) {
	for program, code := range map[string]int{"nothing": 0, "fail": 3} {
		id := start(t, e, e.Spec(t, program))
		c := awaitEnd(t, e, id)
		testbed.Check(t, c.ExitCode == code && !c.OOMKilled, "%s: %+v, want exit code %d", program, c, code)
		list, err := e.List(t.Context())
		i := slices.IndexFunc(list, func(c farm.Container) bool { return c.ID == id })
		testbed.Check(t, err == nil && i >= 0 && !list[i].Running, "%s: list %+v, %v", program, list, err)
	}
}

// memoryLimit ends a sandbox, and the engine says why. Its control group goes with it, now and then before the engine has read the reason from
// it: so one of five tells it.
func memoryLimit(t *testing.T, e *Subject) {
	reported := false
	for range 5 {
		s := e.Spec(t, "eat")
		s.Resources.MemoryMB = 64
		c := awaitEnd(t, e, start(t, e, s))
		testbed.Diff(t, "exit code", 137, c.ExitCode)
		reported = reported || c.OOMKilled
	}
	testbed.Check(t, reported, "the engine never said that the limit was reached")
}

func processLimit(t *testing.T, e *Subject) {
	s := e.Spec(t, "wait")
	if e.NoProcessLimit {
		c, err := e.Inspect(t.Context(), start(t, e, s))
		testbed.Check(t, err == nil && c.Resources.PIDs == 0, "%+v, %v: a limit that does not hold", c, err)
		return
	}
	s.Resources.PIDs = 64
	out := output(t, e, start(t, e, s), "forks")
	got, err := strconv.Atoi(strings.TrimSpace(out))
	testbed.Check(t, err == nil && got < 64 && got >= 1, "%d children at once (%v), want fewer than 64", got, err)
}

// A worker that is late may create the container of an earlier generation under the sandbox's name. The create of the later one replaces it,
// also if it runs, and the late worker does not get the container of the later one. Both used to get whichever container was there.
func generations(t *testing.T, e *Subject) {
	ctx, s := t.Context(), e.Spec(t, "wait")
	of := func(generation int) farm.ContainerSpec {
		s.Generation = generation
		return s
	}
	for _, c := range []struct{ first, second int }{{0, 2}, {2, 10}} {
		late := start(t, e, of(c.first))
		id, err := e.Create(ctx, of(c.second))
		testbed.Require(t, err == nil && id != late, "create of generation %d over %d = %s, %v", c.second, c.first, id, err)
		_, err = e.Inspect(ctx, late)
		wantCode(t, "inspect the earlier one", err, farm.CodeNotFound)
		again, err := e.Create(ctx, of(c.second))
		testbed.Check(t, err == nil && again == id, "the same create again = %s, %v, want %s", again, err, id)
		if _, err := e.Create(ctx, of(c.first)); !errors.Is(err, farm.ErrNewer) {
			t.Errorf("a late create of generation %d over %d = %v, want ErrNewer", c.first, c.second, err)
		}
		got, err := e.Inspect(ctx, id)
		testbed.Check(t, err == nil && got.Generation == c.second, "the container is %+v, %v", got, err)
	}
}

// Creates of several generations at once: the last one's container is what is left. An engine may take the name before it shows the container: a
// create that meets only the name waits. It used to fail after three tries.
func generationsAtOnce(t *testing.T, e *Subject) {
	s := e.Spec(t, "wait")
	var group sync.WaitGroup
	for generation := 1; generation <= 3; generation++ {
		group.Go(func() {
			of := s
			of.Generation = generation
			_, err := e.Create(t.Context(), of)
			testbed.Check(t, generation != 3 || err == nil, "the last generation: %v", err)
		})
	}
	group.Wait()
	got, err := e.Inspect(t.Context(), e.Name(s.SandboxID))
	testbed.Check(t, err == nil && got.Generation == 3, "the container is %+v, %v", got, err)
}

func removeAtOnce(t *testing.T, e *Subject) {
	id := start(t, e, e.Spec(t, "wait"))
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if err := e.Remove(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}

// stream carries bytes both ways at once, as another user, and Close ends it.
func stream(t *testing.T, e *Subject) {
	s, err := e.DialSocket(t.Context(), start(t, e, e.Spec(t, "wait")), "", []string{"/sandfarm/agent", "echo"}, "65533:65533")
	testbed.Must(t, err)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB
	var group sync.WaitGroup
	group.Go(func() {
		if _, err := s.Write(sent); err != nil {
			t.Error(err)
		}
	})
	got := make([]byte, len(sent))
	_, err = io.ReadFull(s, got)
	testbed.Check(t, err == nil && bytes.Equal(got, sent), "echo differs, error %v", err)
	group.Wait()
	waits := make(chan error, 1)
	go func() {
		_, err := s.Read(got)
		waits <- err
	}()
	testbed.Must(t, s.Close())
	err = <-waits
	testbed.Check(t, err != nil, "a read that waited came back without an error after Close")
}

// socket is that of the program of a container, which is reached one way or the other, never as the user of that program.
func socket(t *testing.T, e *Subject) {
	id := start(t, e, e.Spec(t, "listen"))
	var got []byte
	testbed.Until(t, "the program answers", func() bool {
		s, err := e.DialSocket(t.Context(), id, "@probe", []string{"/sandfarm/agent", "join"}, "65533:65533")
		testbed.Must(t, err)
		defer s.Close()
		if _, err := s.Write([]byte("hello\n")); err != nil {
			return false
		}
		got = nil
		for one := make([]byte, 1); bytes.Count(got, []byte("\n")) < 2; got = append(got, one...) {
			if _, err := io.ReadFull(s, one); err != nil {
				return false // through a command, it may not listen yet
			}
		}
		return true
	})
	text := string(got)
	testbed.Check(t, text == "0\nhello\n" || text == "65533\nhello\n", "user and echo are %q", text)
}

// A running container of an engine with counters has some that grow; one that does not run has none.
func usage(t *testing.T, e *Subject) {
	counters, ok := e.Engine.(node.Counters)
	if !ok {
		return
	}
	id := start(t, e, e.Spec(t, "wait"))
	testbed.Until(t, "the engine counts", func() bool {
		u, ok, err := counters.Usage(t.Context(), id)
		testbed.Must(t, err)
		return ok && u.Container == id && u.CPU > 0 && u.Memory > 0 && u.Memory < 8<<30
	})
	made, err := e.Create(t.Context(), e.Spec(t, "wait"))
	testbed.Must(t, err)
	if u, ok, err := counters.Usage(t.Context(), made); ok || err != nil {
		t.Errorf("a container that was not started: %+v, %v, %v", u, ok, err)
	}
	_, _, err = counters.Usage(t.Context(), "no-such-container")
	wantCode(t, "a container that does not exist", err, farm.CodeNotFound)
}

// An engine that can read the files of an image says so where there is none.
func preload(t *testing.T, e *Subject) {
	engine, ok := e.Engine.(node.Preloader)
	if !ok {
		return
	}
	testbed.Must(t, engine.Preload(t.Context(), e.Spec(t, "wait").Image))
	wantCode(t, "an image that does not exist", engine.Preload(t.Context(), "sandfarm/none:1"), farm.CodeNotFound)
}

// A running sandbox gets other limits, higher or lower, and nothing else changes. Under gVisor it keeps those of its start.
func update(t *testing.T, e *Subject) {
	s := e.Spec(t, "wait")
	id := start(t, e, s)
	before, err := e.Inspect(t.Context(), id)
	testbed.Must(t, err)
	if GVisor() {
		wantCode(t, "update under gVisor", e.Update(t.Context(), id, "", farm.Resources{MemoryMB: 512, CPUs: 0.5, PIDs: 128, DiskMB: 64}), farm.CodeConflict)
		got, err := e.Inspect(t.Context(), id)
		testbed.Check(t, err == nil && cmp.Equal(before, got), "after the update: %+v, %v; want %+v", got, err, before)
		return
	}
	for _, r := range []farm.Resources{{MemoryMB: 512, CPUs: 0.5, PIDs: 128, DiskMB: 64}, {MemoryMB: 128, CPUs: 1, PIDs: 32, DiskMB: 64}} {
		if e.NoProcessLimit {
			wantCode(t, "another limit of processes", e.Update(t.Context(), id, "", r), farm.CodeConflict)
			r.PIDs = s.Resources.PIDs
		}
		testbed.Must(t, e.Update(t.Context(), id, "", r))
		got, err := e.Inspect(t.Context(), id)
		testbed.Must(t, err)
		want := before
		want.Resources = e.limits(r)
		testbed.Diff(t, fmt.Sprintf("after the update to %+v", r), want, got)
	}
	testbed.Must(t, e.Remove(t.Context(), id))
	wantCode(t, "update of one that is gone", e.Update(t.Context(), id, "", farm.Resources{}), farm.CodeNotFound)
}

// A container that was made without an owner gets one, for good, which another worker reads.
func notes(t *testing.T, e *Subject) {
	ctx, other := t.Context(), e.Again(t)
	var made []farm.Container
	for range 2 {
		s := e.Spec(t, "wait")
		s.Tenant, s.Labels = "", map[string]string{"sandfarm.pool": "python"}
		c, err := e.Inspect(ctx, start(t, e, s))
		testbed.Must(t, err)
		made = append(made, c)
	}
	_, err := other.Noted(ctx, made[0])
	wantCode(t, "note that is not there", err, farm.CodeNotFound)
	for _, text := range []string{"first", "second"} { // a note never changes
		testbed.Must(t, e.Note(ctx, made[0].SandboxID, "tenant-b", map[string]string{"sandfarm.x": text}))
	}
	c, err := other.Noted(ctx, made[0])
	if _, pool := c.Labels["sandfarm.pool"]; err != nil || c.Labels["sandfarm.x"] != "first" || pool || c.Tenant != "tenant-b" || c.Generation != 1 || c.ID != made[0].ID || !c.Running {
		t.Errorf("Noted = %+v, %v", c, err)
	}
	testbed.Must(t, e.Note(ctx, made[1].SandboxID, "tenant-b", nil))
	e.soon(t, "another worker lists both notes", func() bool {
		list, err := other.Notes(ctx)
		return err == nil && len(list) == 2 && slices.Contains(list, made[1].SandboxID)
	})
	for range 2 {
		testbed.Must(t, errors.Join(e.Remove(ctx, made[0].ID), e.RemoveNote(ctx, made[0].SandboxID)))
	}
	e.soon(t, "after the removal one note is left", func() bool {
		list, err := other.Notes(ctx)
		return err == nil && slices.Equal(list, []string{made[1].SandboxID})
	})
}

// Workers that ask a new engine at the same time agree on its id.
func identity(t *testing.T, e *Subject) {
	ids := make([]farm.EngineIdentity, 6)
	var group sync.WaitGroup
	for i := range ids {
		group.Go(func() {
			var err error
			if ids[i], err = e.Again(t).Identify(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, id := range ids {
		if !cmp.Equal(id, ids[0]) || !farm.ValidID(farm.NodePrefix, id.Node) || id.Arch == "" || len(id.Runtimes) != 1 {
			t.Errorf("%+v and %+v", id, ids[0])
		}
	}
	_, err := e.Identify(t.Context(), "no-such-runtime")
	testbed.Check(t, farm.CodeOf(err) == farm.CodeConflict, "a runtime that the engine lacks: %v", err)
	all, err := e.Capacity(t.Context())
	testbed.Check(t, err == nil && all.MemoryMB >= 1 && all.CPUs > 0, "capacity %+v, %v", all, err)
}

// An engine that does not answer says so by a code, and blocks no caller.
func silence(t *testing.T, e *Subject) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // its expiry would be another error
	defer cancel()
	down, hangs := e.Silent(t)
	wantCode(t, "ping one that hangs", hangs.Ping(ctx), farm.CodeUnavailable)
	wantCode(t, "ping", down.Ping(ctx), farm.CodeUnavailable)
	_, err := down.Identify(ctx)
	wantCode(t, "identify", err, farm.CodeUnavailable)
	_, err = down.List(ctx)
	wantCode(t, "list", err, farm.CodeUnavailable)
	_, err = down.Inspect(ctx, "x")
	wantCode(t, "inspect", err, farm.CodeUnavailable)
	_, err = dial(ctx, down, "x", "echo")
	wantCode(t, "dial", err, farm.CodeUnavailable)
}

// Farms in one engine do not see each other, also while each starts several sandboxes at once.
func farmsApart(t *testing.T, one, two *Subject) {
	farms := []*Subject{one, two}
	ids := make([][]string, len(farms))
	var group sync.WaitGroup
	for i, e := range farms {
		ids[i] = make([]string, 3)
		for k := range ids[i] {
			s := e.Spec(t, "wait")
			group.Go(func() {
				id, err := e.Create(t.Context(), s)
				if err == nil {
					err = e.Start(t.Context(), id)
				}
				if ids[i][k] = id; err != nil {
					t.Error(err)
				}
			})
		}
	}
	group.Wait()
	for i, e := range farms {
		var got []string
		list, err := e.List(t.Context())
		for _, c := range list {
			if got = append(got, c.ID); !c.Running {
				t.Errorf("it does not run: %+v", c)
			}
		}
		slices.Sort(got)
		want := slices.Sorted(slices.Values(ids[i]))
		testbed.Check(t, err == nil && slices.Equal(got, want), "farm %d has %v, %v; want %v", i, got, err, want)
	}
}

// start creates and starts a container.
func start(t *testing.T, e *Subject, s farm.ContainerSpec) string {
	t.Helper()
	id, err := e.Create(t.Context(), s)
	if err == nil {
		err = e.Start(t.Context(), id)
	}
	testbed.Must(t, err)
	return id
}

// awaitEnd waits until the program of a container has ended, and describes the container.
func awaitEnd(t *testing.T, e *Subject, id string) (c farm.Container) {
	t.Helper()
	testbed.Until(t, "the container has ended", func() (over bool) {
		var err error
		c, err = e.Inspect(t.Context(), id)
		testbed.Must(t, err)
		return !c.Running
	})
	return c
}

// dial runs the probe in a container.
func dial(ctx context.Context, e node.Engine, id string, args ...string) (io.ReadWriteCloser, error) {
	return e.DialSocket(ctx, id, "", append([]string{"/sandfarm/agent"}, args...), "")
}

// output is what the probe prints in a container.
func output(t *testing.T, e *Subject, id string, args ...string) string {
	t.Helper()
	s, err := dial(t.Context(), e, id, args...)
	testbed.Must(t, err)
	defer s.Close()
	out, err := io.ReadAll(s)
	testbed.Must(t, err)
	return string(out)
}

func wantCode(t *testing.T, what string, err error, want farm.Code) {
	t.Helper()
	got := farm.CodeOf(err)
	testbed.Check(t, got == want, "%s: code %q (%v), want %q", what, got, err, want)
}
