package workertest

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/node"
)

// Accept accepts a job for the queue cpu, which change may alter before.
func (b *Farm) Accept(kind farm.JobKind, sandbox string, request *farm.Request, change func(*store.Accept)) farm.Ref {
	b.T.Helper()
	a := store.Accept{Job: &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: Tenant, Kind: kind, SandboxID: sandbox, Queue: farm.QueueCPU, TimeoutSeconds: 60}, Request: request}
	a.Job.Inline = kind == farm.KindClose
	if change != nil {
		change(&a)
	}
	_, err := b.Store.Accept(b.T.Context(), a)
	testbed.Must(b.T, err)
	return a.Job.Ref()
}

// Creation accepts a job that creates a sandbox, or runs a command in one of its own.
func (b *Farm) Creation(kind farm.JobKind) (job, sandbox farm.Ref) {
	b.T.Helper()
	box := &farm.Sandbox{
		ID: farm.NewID(farm.SandboxPrefix), Tenant: Tenant, OneShot: kind == farm.KindRun,
		Spec: farm.SandboxSpec{Image: "python", Network: farm.NetworkNone, TTLSeconds: 3600},
	}
	request := &farm.Request{Sandbox: &box.Spec}
	if kind == farm.KindRun {
		request.Command = &farm.CommandRequest{Commands: []string{"echo one shot"}}
	}
	job = b.Accept(kind, box.ID, request, func(a *store.Accept) { a.Sandbox = box })
	return job, farm.Ref{Tenant: Tenant, ID: box.ID}
}

// Ready makes a sandbox that is ready on the node.
func (b *Farm) Ready() farm.Ref {
	b.T.Helper()
	job, sandbox := b.Creation(farm.KindCreate)
	claim, err := b.Store.Claim(b.T.Context(), job, "wrk_setup")
	testbed.Must(b.T, err)
	b.Move(sandbox, farm.SandboxStarting, farm.SandboxReady)
	_, err = b.Store.Finish(b.T.Context(), store.Finish{Ref: job, Attempt: claim.Job.Attempt, State: farm.JobCompleted})
	testbed.Must(b.T, err)
	return sandbox
}

// Move takes a sandbox through states, on the node.
func (b *Farm) Move(sandbox farm.Ref, states ...farm.SandboxState) {
	b.T.Helper()
	for _, to := range states {
		_, err := b.Store.MoveSandbox(b.T.Context(), store.Move{Ref: sandbox, To: to, Node: Node})
		testbed.Must(b.T, err)
	}
}

// Requeue gives a job back.
func (b *Farm) Requeue(job farm.Ref, how store.Requeue) {
	b.T.Helper()
	testbed.Must(b.T, b.Store.Requeue(b.T.Context(), job, how))
}

// Command accepts a shell command.
func (b *Farm) Command(sandbox farm.Ref, line string) farm.Ref {
	b.T.Helper()
	return b.Accept(farm.KindCommand, sandbox.ID, &farm.Request{Command: &farm.CommandRequest{Commands: []string{line}}}, nil)
}

// CloseJob accepts a job that closes a sandbox.
func (b *Farm) CloseJob(sandbox farm.Ref) farm.Ref {
	b.T.Helper()
	return b.Accept(farm.KindClose, sandbox.ID, &farm.Request{Close: &farm.CloseRequest{}}, nil)
}

// Job reads a job.
func (b *Farm) Job(ref farm.Ref) *farm.Job {
	b.T.Helper()
	job, err := b.Store.Job(b.T.Context(), ref)
	testbed.Must(b.T, err)
	return job
}

// JobIs ends the test if a job does not have a state.
func (b *Farm) JobIs(ref farm.Ref, want farm.JobState) *farm.Job {
	b.T.Helper()
	job := b.Job(ref)
	testbed.Require(b.T, job.State == want, "the %s job is %s, want %s; error %+v, result %+v", job.Kind, job.State, want, job.Error, job.Result)
	return job
}

// SandboxIs ends the test if a sandbox does not have a state.
func (b *Farm) SandboxIs(ref farm.Ref, want farm.SandboxState) *farm.Sandbox {
	b.T.Helper()
	s := b.Sandbox(ref)
	testbed.Require(b.T, s.State == want, "the sandbox is %s, want %s; reason %q", s.State, want, s.Reason)
	return s
}

// Claim claims a job for a worker.
func (b *Farm) Claim(job farm.Ref, worker string) *store.Claim {
	b.T.Helper()
	claim, err := b.Store.Claim(b.T.Context(), job, worker)
	testbed.Must(b.T, err)
	return claim
}

// Sandbox reads a sandbox.
func (b *Farm) Sandbox(ref farm.Ref) *farm.Sandbox {
	b.T.Helper()
	s, err := b.Store.Sandbox(b.T.Context(), ref)
	testbed.Must(b.T, err)
	return s
}

// Stdout joins the text of a job's events.
func (b *Farm) Stdout(job farm.Ref) string {
	b.T.Helper()
	var text strings.Builder
	for _, e := range b.Events(job) {
		if e.Name == farm.EventStdout {
			text.WriteString(e.Text)
		}
	}
	return text.String()
}

// Events reads all events of a job.
func (b *Farm) Events(job farm.Ref) []farm.Event {
	b.T.Helper()
	var events []farm.Event
	for after := ""; ; after = events[len(events)-1].ID {
		batch, err := b.Store.Events(b.T.Context(), job, after)
		testbed.Must(b.T, err)
		if events = append(events, batch.Events...); !batch.More {
			return events
		}
	}
}

// Progress joins the messages of a job's progress events.
func (b *Farm) Progress(job farm.Ref) string {
	b.T.Helper()
	var messages strings.Builder
	for _, e := range b.Events(job) {
		if e.Progress != nil {
			messages.WriteString(e.Progress.Message)
		}
	}
	return messages.String()
}

// Sized accepts the create of a sandbox of a size.
func (b *Farm) Sized(memoryMB int, cpus float64) (job, sandbox farm.Ref) {
	b.T.Helper()
	box := &farm.Sandbox{
		ID: farm.NewID(farm.SandboxPrefix), Tenant: Tenant,
		Spec: farm.SandboxSpec{Image: "python", Network: farm.NetworkNone, TTLSeconds: 3600, Resources: farm.Resources{MemoryMB: memoryMB, CPUs: cpus}},
	}
	job = b.Accept(farm.KindCreate, box.ID, &farm.Request{Sandbox: &box.Spec}, func(a *store.Accept) { a.Sandbox = box })
	return job, farm.Ref{Tenant: Tenant, ID: box.ID}
}

// Reserved checks what is reserved on the node.
func (b *Farm) Reserved(want farm.Capacity) {
	b.T.Helper()
	nodes, err := b.Store.ReportCapacity(b.T.Context(), "other", farm.Capacity{})
	testbed.Must(b.T, err)
	got := nodes[Node].Reserved
	testbed.Check(b.T, got == want, "reserved are %+v, want %+v", got, want)
}

// IdleMembers counts the members of the warm pool that wait for a create.
func (b *Farm) IdleMembers() int {
	b.T.Helper()
	list, err := b.Store.Members(b.T.Context())
	testbed.Must(b.T, err)
	n := 0
	for _, m := range list {
		if m.State == store.MemberIdle {
			n++
		}
	}
	return n
}

// Claimed accepts the create of a sandbox that has claimed the oldest member like m.
func (b *Farm) Claimed(m store.Member, change func(*farm.Sandbox)) (job, sandbox farm.Ref) {
	b.T.Helper()
	got, err := b.Store.ClaimMember(b.T.Context(), store.MemberClaim{Tenant: Tenant, Image: m.Image, Network: m.Network, DiskMB: m.Resources.DiskMB, Nodes: []string{Node}})
	testbed.Must(b.T, err)
	box := &farm.Sandbox{
		ID: got.ID, Tenant: Tenant, Node: got.Node, Pooled: true, CreatedAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour),
		Spec: farm.SandboxSpec{Image: "python", Network: farm.NetworkNone, TTLSeconds: 3600, Resources: m.Resources},
	}
	if change != nil {
		change(box)
	}
	job = b.Accept(farm.KindCreate, box.ID, &farm.Request{Sandbox: &box.Spec}, func(a *store.Accept) {
		a.Sandbox, a.Job.Queue = box, farm.NodeQueue(got.Node)
	})
	return job, farm.Ref{Tenant: Tenant, ID: box.ID}
}

// Member adds a ready member of the warm pool that a worker made, with its container, its reservation and its agent.
func (b *Farm) Member(n *node.Node, workerID, version string, capacity farm.Capacity) store.Member {
	b.T.Helper()
	m := store.Member{
		ID: farm.NewID(farm.SandboxPrefix), Node: Node, Image: "python", Network: farm.NetworkNone, Version: version, Worker: workerID,
		Resources: farm.Resources{MemoryMB: 2048, CPUs: 2, PIDs: 256, DiskMB: 1024},
	}
	_, _, err := b.Store.Reserve(b.T.Context(), store.ReserveRequest{Node: Node, Capacity: capacity, Sandbox: farm.Ref{ID: m.ID}, Want: m.Resources.Capacity(), Force: true})
	testbed.Must(b.T, err)
	b.Agent(farm.Ref{ID: m.ID}, n)
	b.Fake.PutMember(m.ID, true)
	m.Container = "test-" + m.ID
	testbed.Must(b.T, b.Store.BeginMember(b.T.Context(), m))
	testbed.Must(b.T, b.Store.MemberReady(b.T.Context(), m))
	return m
}

// creates is what a fake engine creates.
type creates struct {
	hold  chan struct{} // the creates wait until it is closed; nil: they do not
	begun chan struct{} // has a value for each that waits
	made  int
}

// Create lets containers be created, not started, from now on.
func (e *Engine) Create() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.creates = &creates{}
}

// HoldCreates is Create, but each create waits until release is called. As in an engine, it continues if its caller leaves. begun has a value for
// each create that waits.
func (e *Engine) HoldCreates() (begun <-chan struct{}, release func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.creates = &creates{hold: make(chan struct{}), begun: make(chan struct{}, 16)}
	return e.creates.begun, func() { close(e.creates.hold) }
}

// Created counts the containers that were created.
func (e *Engine) Created() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.creates.made
}

// awaitCreate holds a request that creates a container.
func (e *Engine) awaitCreate(r *http.Request) {
	e.mu.Lock()
	c := e.creates
	e.mu.Unlock()
	if c != nil && c.hold != nil && strings.HasSuffix(r.URL.Path, "/containers/create") {
		c.begun <- struct{}{}
		<-c.hold
	}
}

// create answers a request that creates a container. The caller holds mu.
func (e *Engine) create(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("name")
	if _, ok := e.containers[name]; ok {
		http.Error(w, `{"message":"Conflict. The container name is already in use"}`, http.StatusConflict)
		return
	}
	var body struct{ Labels map[string]string }
	_ = json.NewDecoder(r.Body).Decode(&body)
	e.containers[name], e.labels[name] = false, body.Labels
	e.creates.made++
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]any{"Id": name})
}

// hasLabels reports whether labels match the filters of a request.
func hasLabels(labels map[string]string, filters string) bool {
	var f struct{ Label map[string]bool }
	_ = json.Unmarshal([]byte(filters), &f)
	for want := range f.Label {
		name, value, exact := strings.Cut(want, "=")
		if got, ok := labels[name]; !ok || exact && got != value {
			return false
		}
	}
	return true
}
