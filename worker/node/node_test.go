package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/signature"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errTest = errors.New("made to fail")

// newNode makes a node whose engine does not answer.
func newNode(t *testing.T, metrics prometheus.Registerer) *Node {
	t.Helper()
	e, err := engine.New(engine.Config{Host: "tcp://127.0.0.1:1", Namespace: "test", Logger: slog.New(slog.DiscardHandler)})
	testbed.Must(t, err)
	t.Cleanup(func() { _ = e.Close() })
	n, err := New(t.Context(), Deps{Engine: e, Log: slog.New(slog.DiscardHandler), Now: time.Now, Metrics: metrics})
	testbed.Must(t, err)
	n.UseIdentity("n1", "agent-volume")
	t.Cleanup(n.Close)
	return n
}

// Where the engine has no counters, the agent of a sandbox says what it uses, if there is a connection. Only the last sample makes one.
func TestAgentsCountWhereTheEngineDoesNot(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.engine = struct{ Engine }{n.engine}
	box := &farm.Sandbox{ID: "sbx_1", Container: "c1"}
	_, ok, err := n.Usage(t.Context(), box, false)
	testbed.Check(t, !ok && err == nil, "without a connection: %v, %v", ok, err)
	_, _, err = n.Usage(t.Context(), box, true)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeUnavailable, "the last sample does not connect: %v", err)
	a := agenttest.Start(t, "/usr/bin:/bin", nil)
	testbed.Must(t, n.UseConnection(t.Context(), box.ID, func() *client.Client { return agenttest.Connect(t, a.Server) }))
	for _, last := range []bool{false, true} {
		u, ok, err := n.Usage(t.Context(), box, last)
		testbed.Check(t, err == nil && ok && u.Container == "c1" && u.CPU > 0 && u.Memory >= 0, "%+v, %v, %v", u, ok, err)
	}
	box.CreatedAt, box.Spec.Resources = time.Now().Add(-time.Second), farm.Resources{MemoryMB: 1, CPUs: 1e-6}
	if u, ok, err := n.Usage(t.Context(), box, false); err != nil || !ok || u.CPU <= 0 || u.CPU > time.Millisecond || u.Memory > 1<<20 {
		t.Errorf("more than the sandbox may use: %+v, %v, %v", u, ok, err)
	}
	_, ok, err = n.Usage(t.Context(), &farm.Sandbox{ID: box.ID}, true)
	testbed.Check(t, !ok && err == nil, "a sandbox whose container is not known: %v, %v", ok, err)
}

// preloading is an engine that has images, and reads them.
type preloading struct {
	Engine
	images []farm.Image
	read   []string
	err    error
}

func (e *preloading) Images(context.Context) ([]farm.Image, error) {
	return slices.Clone(e.images), nil
}

func (e *preloading) Capacity(context.Context) (farm.Capacity, error) {
	return farm.Capacity{MemoryMB: 4}, nil
}

func (e *preloading) Preload(_ context.Context, image string) error {
	e.read = append(e.read, image)
	return e.err
}

// Images are read once in an hour, and new ones when they are there, of as many as have a quarter of the memory together.
func TestImagesAreReadIntoMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := &preloading{images: []farm.Image{{ID: "a", Ref: "a:1", Size: 1<<20 - 2}, {ID: "b", Ref: "b:1", Size: 3}}}
		n, err := New(t.Context(), Deps{Engine: e, Log: slog.New(slog.DiscardHandler), Now: time.Now})
		testbed.Must(t, err)
		defer n.Close()
		wantRead := func(when string, want ...string) {
			t.Helper()
			e.read = nil
			_ = n.Preload(t.Context())
			testbed.Diff(t, when, want, e.read)
		}
		wantRead("at first", "a:1")
		e.images = append(e.images, farm.Image{ID: "c", Ref: "c:1", Size: 1}, farm.Image{ID: "d", Ref: "d:1", Size: 1})
		time.Sleep(time.Minute)
		e.err = errTest
		wantRead("new ones, of which none can be read", "c:1", "d:1")
		time.Sleep(time.Hour - time.Minute - time.Nanosecond)
		wantRead("within the hour")
		time.Sleep(time.Nanosecond)
		wantRead("after an hour", "a:1")
		e.images = e.images[:1]
		time.Sleep(time.Minute)
		wantRead("when images are gone")
		testbed.Diff(t, "images that are remembered", 1, len(n.preloaded))
	})
}

// stalling is an engine whose sockets of some containers do not answer; the others fail.
type stalling struct {
	Engine
	asked, stalled atomic.Int32
}

func (e *stalling) DialSocket(ctx context.Context, id, _ string, _ []string, _ string) (io.ReadWriteCloser, error) {
	if id != "stalls" {
		e.asked.Add(1)
		return nil, errTest
	}
	e.stalled.Add(1)
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// Agents of one tenant that stall hold back the deadlines of no other tenant. They were sent one after the other, each of these for deadlineTimeout.
func TestStalledAgentsDelayNoOtherTenantsDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := &stalling{}
		base, end := context.WithCancel(t.Context())
		n, err := New(base, Deps{Engine: e, Log: slog.New(slog.DiscardHandler), Now: time.Now})
		testbed.Must(t, err)
		defer n.Close()
		defer end()
		var open []*farm.Sandbox
		for i := range 20 {
			open = append(open, &farm.Sandbox{ID: fmt.Sprint("sbx_", i), Tenant: "stalls", Container: "stalls", State: farm.SandboxReady, ExpiresAt: time.Now().Add(time.Hour)})
		}
		for i := range 2 {
			open = append(open, &farm.Sandbox{ID: fmt.Sprint("sbx_acme", i), Tenant: "acme", Container: "fails", State: farm.SandboxReady, ExpiresAt: time.Now().Add(time.Hour)})
		}
		for round := range int32(3) {
			n.SyncDeadlines(open, nil)
			synctest.Wait()
			asked, stalled := e.asked.Load(), e.stalled.Load()
			testbed.Check(t, asked == 2*(round+1) && stalled == 4, "after round %d: acme's agents were asked %d times, those that stall %d times", round, asked, stalled)
		}
		time.Sleep(5 * deadlineTimeout)
		synctest.Wait()
		testbed.Check(t, e.stalled.Load() == 20, "of 20 agents that stall %d were asked", e.stalled.Load())
	})
}

func TestConnectionsAreSharedAndDialledAgain(t *testing.T) {
	t.Parallel()
	const id = "sbx_1"
	n := newNode(t, nil)
	a := agenttest.Start(t, "/usr/bin:/bin", nil)
	dials, release := make(chan struct{}, 10), make(chan struct{})
	dial := func(ctx context.Context, _ func() string) (*client.Client, PortDialer, error) {
		dials <- struct{}{}
		select {
		case <-release:
			return a.Client, nil, nil
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
	base := t.Context()
	one, err := n.connections.get(base, id, "acme", dial)
	testbed.Must(t, err)
	two, err := n.connections.get(base, id, "acme", dial)
	testbed.Must(t, err)
	testbed.Require(t, one == two, "two callers have two connections")
	<-dials
	n.Disconnect(id) // ends the dial at once
	<-one.ready
	testbed.Require(t, errors.Is(one.err, context.Canceled), "a dropped dial gave %v", one.err)
	close(release)
	three, err := n.connections.get(base, id, "acme", dial)
	testbed.Must(t, err)
	<-three.ready
	testbed.Require(t, three.err == nil && !three.over(), "the next dial gave %v", three.err)
	testbed.Must(t, a.Client.Close()) // it breaks: the connection is forgotten without another use
	n.connections.wg.Wait()
	testbed.Require(t, n.connections.count() == 0, "a broken connection is not forgotten")
	n.Close()
	_, err = n.connections.get(base, id, "acme", dial)
	testbed.Require(t, errors.Is(err, ErrStopping), "a stopped worker dials: %v", err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = newNode(t, nil).Connect(ended, &farm.Sandbox{ID: "sbx_x", Tenant: "acme"})
	testbed.Require(t, err != nil, "a caller whose context has ended got a connection")
}

func TestMetricsOfConnections(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	n := newNode(t, registry)
	fails, err := n.connections.get(t.Context(), "sbx_1", "acme", func(context.Context, func() string) (*client.Client, PortDialer, error) { return nil, nil, errTest })
	testbed.Must(t, err)
	<-fails.ready
	n.connections.wg.Wait()
	hang := func(ctx context.Context, _ func() string) (*client.Client, PortDialer, error) {
		<-ctx.Done()
		return nil, nil, ctx.Err()
	}
	_, err = n.connections.get(t.Context(), "sbx_2", "acme", hang)
	testbed.Must(t, err)
	got := gathered(t, registry, "sandfarm_worker_agent_links")
	testbed.Check(t, got == 1, "%v connections are open, want 1", got)
	n.Disconnect("sbx_2") // closed by this worker: not an error
	n.connections.wg.Wait()
	errs, open := gathered(t, registry, "sandfarm_worker_agent_dial_errors_total"), gathered(t, registry, "sandfarm_worker_agent_links")
	testbed.Check(t, errs == 1 && open == 0, "%v dial errors and %v connections, want 1 and 0", errs, open)
	families, err := registry.Gather()
	testbed.Must(t, err)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	testbed.Check(t, err == nil && len(problems) == 0, "names: %v %v", problems, err)
}

func gathered(t *testing.T, from prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := from.Gather()
	testbed.Must(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// The container spec must contain every part of the sandbox's record.
func TestContainerSpec(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	s := &farm.Sandbox{
		ID: "sbx_1", Tenant: "acme", ExpiresAt: time.Unix(1_800_000_000, 0),
		Spec: farm.SandboxSpec{Network: farm.NetworkNone, Resources: farm.Resources{MemoryMB: 128, CPUs: 0.5, PIDs: 32, DiskMB: 64}, Env: map[string]string{"A": "b"}},
	}
	got := n.ContainerSpec(s, farm.Image{Ref: "image:1"})
	if got.SandboxID != s.ID || got.Tenant != "acme" || got.Node != "n1" || got.Image != "image:1" || got.Agent != "agent-volume" || got.Generation != 1 ||
		got.Resources != s.Spec.Resources || !got.Deadline.Equal(s.ExpiresAt) || got.Env["A"] != "b" {
		t.Errorf("spec %+v", got)
	}
	got.Env["A"] = "changed"
	testbed.Check(t, s.Spec.Env["A"] == "b", "the spec shares its environment with the record")
}

// The deadline in the label of a container is known to its agent.
func TestDeadlineOfALabelIsKnown(t *testing.T) {
	t.Parallel()
	ends := time.Now().Add(time.Hour)
	s := &farm.Sandbox{ID: "sbx_1", ExpiresAt: ends}
	var d deadlines
	for label, known := range map[time.Time]bool{ends.Truncate(time.Second): true, ends.Add(-2 * time.Second): false, {}: false} {
		testbed.Check(t, d.knows(s, label) == known, "a label of %s is known: %v", label, !known)
	}
}

// A container belongs to its sandbox if it was made for the sandbox's generation. A member of the pool has the first one. One that the release
// before made belongs to a sandbox of its node.
func TestBelongs(t *testing.T) {
	t.Parallel()
	second := farm.Container{Node: "n1", Generation: 2}
	member := farm.Container{Node: "n1", Generation: 1, Labels: map[string]string{LabelPool: "python"}}
	older := farm.Container{Node: "n1", Generation: 1, Labels: map[string]string{labelAttempt: "2"}}
	for _, c := range []struct {
		generation int
		node       string
		want       [3]bool
	}{
		{0, "n1", [3]bool{false, true, true}},
		{1, "n1", [3]bool{false, true, true}},
		{2, "n1", [3]bool{true, false, true}},
		{3, "n1", [3]bool{false, false, true}},
		{2, "", [3]bool{true, false, true}},
		{2, "n2", [3]bool{true, false, false}},
	} {
		s := &farm.Sandbox{Generation: c.generation, Node: c.node}
		got := [3]bool{Belongs(second, s), Belongs(member, s), Belongs(older, s)}
		testbed.Check(t, got == c.want, "generation %d on %q: %v, want %v", c.generation, c.node, got, c.want)
	}
}

func TestRecordLabelComesBackWithoutSecrets(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(time.Second)
	s := &farm.Sandbox{
		ID: farm.NewID(farm.SandboxPrefix), Tenant: "acme", CreatedAt: now, ExpiresAt: now.Add(time.Hour),
		Spec: farm.SandboxSpec{Image: "python", Env: map[string]string{"TOKEN": "secret value"}, TTLSeconds: 3600},
	}
	labels := Labels(s)
	if strings.Contains(labels[LabelRecord], "secret value") || s.Spec.Env["TOKEN"] != "secret value" {
		t.Fatalf("label %q, record %v", labels[LabelRecord], s.Spec.Env)
	}
	c := farm.Container{ID: "c1", SandboxID: s.ID, Tenant: "acme", Node: "n1", Labels: labels}
	got := RecordOf(c)
	if got == nil || got.Container != "c1" || got.Node != "n1" || !got.ExpiresAt.Equal(s.ExpiresAt) || got.Spec.Image != "python" {
		t.Fatalf("record is %+v", got)
	}
	_, named := got.Spec.Env["TOKEN"]
	testbed.Check(t, named, "the names of variables are kept")
	for what, other := range map[string]farm.Container{
		"another sandbox": {SandboxID: "sbx_other", Tenant: "acme", Labels: labels},
		"another tenant":  {SandboxID: s.ID, Tenant: "other", Labels: labels},
		"no label":        {SandboxID: s.ID, Tenant: "acme"},
	} {
		testbed.Check(t, RecordOf(other) == nil, "%s: a record was read", what)
	}
}

// Each list of containers has the records of all of them, so a record is bounded, whatever its sandbox was given.
func TestRecordLabelIsBounded(t *testing.T) {
	t.Parallel()
	limits := farm.DefaultLimits()
	many := func(n, size int) map[string]string {
		out := map[string]string{}
		for i := range n {
			out[fmt.Sprintf("%03d", i)+strings.Repeat("<", size-3)] = strings.Repeat("\\", size)
		}
		return out
	}
	s := &farm.Sandbox{ID: farm.NewID(farm.SandboxPrefix), Tenant: "acme", ExpiresAt: time.Now().UTC()}
	size := func() int {
		text, err := json.Marshal(Labels(s)[LabelRecord])
		testbed.Must(t, err)
		return len(text)
	}
	s.Spec.Labels = map[string]string{"l": ""}
	room := recordMax - size()
	for _, c := range []struct {
		more int
		kept bool
	}{{-1, true}, {0, true}, {1, false}} {
		s.Spec.Labels = map[string]string{"l": strings.Repeat("x", room+c.more)}
		got := RecordOf(farm.Container{SandboxID: s.ID, Tenant: s.Tenant, Labels: Labels(s)})
		testbed.Check(t, got != nil && (got.Spec.Labels != nil) == c.kept, "%d bytes more than the limit: record %+v", c.more, got)
	}

	s.Spec = farm.SandboxSpec{
		Name: strings.Repeat("<", limits.MaxNameBytes), Image: "python", Network: farm.NetworkAllowlist,
		Labels: many(limits.MaxLabels, limits.MaxLabelBytes), Env: many(limits.MaxEnv, 128),
	}
	for i := range limits.MaxAllowHosts {
		s.Spec.AllowHosts = append(s.Spec.AllowHosts, fmt.Sprintf("%03d.%s.example", i, strings.Repeat("x", 200)))
	}
	got := RecordOf(farm.Container{SandboxID: s.ID, Tenant: s.Tenant, Labels: Labels(s)})
	testbed.Check(t, size() <= recordMax && got != nil && got.Spec.Name == s.Spec.Name && got.Spec.Network == s.Spec.Network && got.Spec.AllowHosts == nil,
		"%d bytes, record %+v", size(), got)
	s.Spec.Labels, s.Spec.Env = map[string]string{"a": "b"}, many(limits.MaxEnv, 128)
	s.Spec.AllowHosts = s.Spec.AllowHosts[:3]
	got = RecordOf(farm.Container{SandboxID: s.ID, Tenant: s.Tenant, Labels: Labels(s)})
	testbed.Check(t, got != nil && len(got.Spec.Env) == 0 && got.Spec.Labels["a"] == "b" && len(got.Spec.AllowHosts) == 3, "without its variables: record %+v", got)
}

// An engine need not make checkpoints.
func TestEngineWithoutCheckpoints(t *testing.T) {
	t.Parallel()
	n, err := New(t.Context(), Deps{Engine: struct{ Engine }{newNode(t, nil).engine}})
	testbed.Must(t, err)
	c := n.Checkpoints()
	has, err := c.HasCheckpoint(t.Context(), "c1")
	testbed.Check(t, !has && err == nil, "it has one: %v, %v", has, err)
	made, resumed := c.Checkpoint(t.Context(), "c1"), c.Resume(t.Context(), "c1")
	testbed.Check(t, farm.CodeOf(made) == farm.CodeConflict && farm.CodeOf(resumed) == farm.CodeConflict, "made: %v; resumed: %v", made, resumed)
	testbed.Must(t, c.RemoveCheckpoint(t.Context(), "c1"))
}

// Connections of a sandbox to the package indexes were bounded, and not charged to its tenant.
func TestConnectionsToTheIndexesAreCharged(t *testing.T) {
	t.Parallel()
	var tenants []string
	n := &Node{deps: Deps{Index: func(string) http.Handler { return http.NotFoundHandler() }, Admit: func(tenant string) (func(), bool) {
		tenants = append(tenants, tenant)
		return func() {}, false
	}}}
	o, end := n.exit(t.Context(), &farm.Sandbox{Spec: farm.SandboxSpec{Network: farm.NetworkPackages}}, func() string { return "acme" })
	defer end()
	_, ok := o.Admit()
	testbed.Check(t, !ok && len(tenants) == 1 && tenants[0] == "acme", "admitted: %v; charged: %q", ok, tenants)
}

// dialled is an engine whose sandboxes have an agent at the other end of a pipe.
type dialled struct {
	Engine
	agent chan net.Conn
}

func (d dialled) DialSocket(context.Context, string, string, []string, string) (io.ReadWriteCloser, error) {
	ours, theirs := net.Pipe()
	d.agent <- theirs
	return ours, nil
}

// The worker connects to a member of the warm pool before it has a tenant. The sandbox that claimed it kept the connection, and what it opened was
// charged to nobody.
func TestConnectionsOfClaimedMembersAreCharged(t *testing.T) {
	t.Parallel()
	charged := make(chan string, 1)
	e := dialled{newNode(t, nil).engine, make(chan net.Conn, 1)}
	n, err := New(t.Context(), Deps{Engine: e, Log: slog.New(slog.DiscardHandler), Index: func(string) http.Handler { return http.NotFoundHandler() }, Admit: func(tenant string) (func(), bool) {
		charged <- tenant
		return func() {}, false
	}})
	testbed.Must(t, err)
	t.Cleanup(n.Close)
	connect := func(tenant string) *client.Client {
		c, err := n.Connect(t.Context(), &farm.Sandbox{ID: "sbx_1", Tenant: tenant, Container: "c1", Spec: farm.SandboxSpec{Network: farm.NetworkPackages}})
		testbed.Must(t, err)
		return c
	}
	member := connect("")
	config := yamux.DefaultConfig()
	config.LogOutput = io.Discard
	session, err := yamux.Server(<-e.agent, config)
	testbed.Must(t, err)
	t.Cleanup(func() { _ = session.Close() })
	for _, step := range []struct{ as, charged string }{{"", ""}, {"acme", "acme"}, {"", "acme"}} {
		testbed.Require(t, connect(step.as) == member, "it was dialled again")
		_, err := session.Open()
		testbed.Must(t, err)
		got := <-charged
		testbed.Check(t, got == step.charged, "connected for %q: %q was charged, want %q", step.as, got, step.charged)
	}
}

// exitless is a proxy that reaches nothing.
type exitless struct{ http.Handler }

func (exitless) Admit() (func(), bool) { return func() {}, true }
func (exitless) Close()                {}

// The package index did not know whose sandbox asks, so one tenant could take all of its downloads.
func TestIndexKnowsTheTenant(t *testing.T) {
	t.Parallel()
	for _, network := range []farm.Network{farm.NetworkPackages, farm.NetworkAllowlist} {
		n := &Node{deps: Deps{
			Index: func(tenant string) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, tenant) })
			},
			Exit: func(context.Context, *farm.Sandbox) Exit { return exitless{http.NotFoundHandler()} },
		}}
		tenant := "" // of a member of the warm pool
		o, end := n.exit(t.Context(), &farm.Sandbox{Spec: farm.SandboxSpec{Network: network}}, func() string { return tenant })
		tenant = "acme"
		answer := httptest.NewRecorder()
		o.Egress.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/pypi/simple/six/", http.NoBody))
		testbed.Diff(t, string(network), "acme", answer.Body.String())
		end()
	}
}

// A container is made of the image that was found, whatever its name is by then. Of images that the operator lists only those are offered.
func TestImagesByID(t *testing.T) {
	t.Parallel()
	const id, digest = "sha256:1", "sha256:2"
	image := farm.Image{Name: "python", Ref: "python:1", ID: id, Digests: []string{digest}}
	for _, c := range []struct {
		allowed []string
		want    bool
	}{{nil, true}, {[]string{id}, true}, {[]string{"sha256:3", digest}, true}, {[]string{"sha256:3"}, false}, {[]string{"python:1"}, false}} {
		n := newNode(t, nil)
		n.deps.AllowedImages = c.allowed
		testbed.Diff(t, fmt.Sprintf("allowed %v", c.allowed), c.want, n.allows(t.Context(), image, nil))
		testbed.Diff(t, "image", id, n.ContainerSpec(&farm.Sandbox{ID: "sbx_1"}, image).Image)
	}
}

// A volume is on the engine's disk, writable and without a limit, whatever the rest of a sandbox is.
func TestImagesWithVolumes(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.deps.AllowedImages = []string{"sha256:1"}
	testbed.Diff(t, "an image with a volume is offered", false, n.allows(t.Context(), farm.Image{ID: "sha256:1", Volumes: []string{"/data"}}, map[string]bool{"sha256:1": true}))
}

// With a key of the operator's, only images that it has signed are offered; images.allowed counts beside that.
func TestSignedImages(t *testing.T) {
	t.Parallel()
	const id, digest = "sha256:1", "sha256:2"
	image := farm.Image{Name: "python", ID: id, Digests: []string{digest}}
	for _, c := range []struct {
		allowed []string
		signed  map[string]bool
		want    bool
	}{
		{nil, map[string]bool{}, false},
		{nil, map[string]bool{"sha256:3": true}, false},
		{nil, map[string]bool{id: true}, true},
		{nil, map[string]bool{digest: true}, true},
		{[]string{id}, map[string]bool{digest: true}, true},
		{[]string{id}, map[string]bool{}, false},
		{[]string{"sha256:3"}, map[string]bool{id: true}, false},
	} {
		n := newNode(t, nil)
		n.deps.AllowedImages = c.allowed
		testbed.Diff(t, fmt.Sprintf("allowed %v, signed %v", c.allowed, c.signed), c.want, n.allows(t.Context(), image, c.signed))
	}
}

// Without readable signatures nothing is signed; without the setting nothing needs a signature.
func TestSignaturesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	got := n.signed(t.Context())
	testbed.Check(t, got == nil, "without the setting: %v", got)
	n.deps.Signatures = &signature.Folder{Path: t.TempDir() + "/none"}
	got = n.signed(t.Context())
	testbed.Check(t, got != nil && len(got) == 0, "without the folder: %v", got)
}

// The runtime of a sandbox is the one that it asks for, or else that of its image, or else the node's. Only a runtime that the node has may be
// asked for.
func TestRuntimeOfASandbox(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.deps.ImageRuntimes = map[string]string{"node": "runsc"}
	n.UseRuntimes("runc", "runsc", "kata")
	got := n.Runtimes()
	testbed.Check(t, slices.Equal(got, []string{"runc", "runsc", "kata"}), "runtimes %v", got)
	for _, c := range []struct {
		spec            farm.SandboxSpec
		runtime, engine string // of the sandbox, and as it is asked of the engine
		offered         bool
	}{
		{farm.SandboxSpec{Image: "python"}, "runc", "", true},
		{farm.SandboxSpec{Image: "python", Runtime: "runc"}, "runc", "runc", true},
		{farm.SandboxSpec{Image: "python", Runtime: "kata"}, "kata", "kata", true},
		{farm.SandboxSpec{Image: "node"}, "runsc", "runsc", true},
		{farm.SandboxSpec{Image: "node", Runtime: "runc"}, "runc", "runc", true},
		{farm.SandboxSpec{Image: "python", Runtime: "other"}, "other", "other", false},
	} {
		got := n.ContainerSpec(&farm.Sandbox{ID: "sbx_1", Spec: c.spec}, farm.Image{Ref: "image:1"})
		if n.Runtime(c.spec) != c.runtime || got.Runtime != c.engine || n.Offers(c.spec) != c.offered {
			t.Errorf("%+v: runtime %q, container %q, offered %v; want %+v", c.spec, n.Runtime(c.spec), got.Runtime, n.Offers(c.spec), c)
		}
	}
}
