package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// offer registers the worker of a node. Of its runtimes the first is the default.
func (b *bundle) offer(node string, memoryMB int, runtimes ...string) {
	b.t.Helper()
	w := farm.Worker{
		ID: "wrk_of_" + node, Node: node, Capacity: farm.Capacity{MemoryMB: memoryMB, CPUs: 8}, Runtimes: runtimes,
		Images: []farm.Image{{Name: "python", Languages: []string{"python"}}},
	}
	if len(runtimes) > 0 {
		w.Images[0].Runtime = runtimes[0]
	}
	w.Pool = []farm.PoolStock{{Image: "python", Target: 1}, {Image: "python", Runtime: "runsc", Target: 1}}
	testbed.Must(b.t, b.store.Heartbeat(b.t.Context(), w))
}

// asked creates a sandbox and returns what its record asks for.
func (b *bundle) asked(body string) *farm.Sandbox {
	b.t.Helper()
	made := get[wire.Created](b, http.StatusAccepted, "POST", "/v1/sandboxes?wait=0", body, asAcme()...)
	box, err := b.store.Sandbox(b.t.Context(), farm.Ref{Tenant: "acme", ID: made.Sandbox.ID})
	testbed.Must(b.t, err)
	if made.Sandbox.Runtime != box.Spec.Runtime || made.Job.Request.Runtime != box.Spec.Runtime {
		b.t.Errorf("the sandbox shows the runtime %q and the request %q, the record has %q", made.Sandbox.Runtime, made.Job.Request.Runtime, box.Spec.Runtime)
	}
	return box
}

// A request may name a runtime that a node offers; a run too. The error for another one lists them.
func TestRuntimeOfARequest(t *testing.T) {
	t.Parallel()
	b := setup(t, withAdmin)
	b.offer("n1", 8192, "runc", "runsc")
	b.offer("n2", 16384, "runc")
	testbed.Diff(t, "runtime of a create without one", "", b.asked(`{}`).Spec.Runtime)
	testbed.Diff(t, "the record asks for", "runsc", b.asked(`{"runtime": "runsc"}`).Spec.Runtime)
	job := get[wire.Job](b, http.StatusAccepted, "POST", "/v1/run?wait=0", `{"code": "1", "runtime": "runsc"}`, asAcme()...)
	testbed.Diff(t, "the run asks for", "runsc", job.Request.Runtime)
	for runtime, want := range map[string]string{"kata": "there is runc, runsc. The operator of the farm adds runtimes (docs/operations.md", "": "not the name of a runtime", "a b": "not the name of a runtime", strings.Repeat("x", 64): "at most 63"} {
		for target, body := range map[string]string{"/v1/sandboxes": `{"runtime": "` + runtime + `"}`, "/v1/run": `{"code": "1", "runtime": "` + runtime + `"}`} {
			p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", target, body, asAcme()...)
			if len(p.Errors) != 1 || p.Errors[0].Pointer != "/runtime" || !strings.Contains(p.Errors[0].Detail, want) {
				t.Errorf("%s with the runtime %q: %+v", target, runtime, p.Errors)
			}
		}
	}
	// The larger node lacks the runtime, so a sandbox that only it could have would wait forever.
	p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", "/v1/sandboxes", `{"runtime": "runsc", "resources": {"memory_mb": 9000}}`, asAcme()...)
	if len(p.Errors) != 1 || p.Errors[0].Pointer != "/resources" || !strings.Contains(p.Errors[0].Detail, "with the runtime runsc") {
		t.Errorf("a sandbox that is too large for the nodes with its runtime: %+v", p.Errors)
	}
	b.asked(`{"resources": {"memory_mb": 9000}}`)
}

// A tenant's sandboxes have its first runtime if they ask for none, and none but its own.
func TestRuntimesOfATenant(t *testing.T) {
	t.Parallel()
	b := setup(t, withAdmin)
	b.offer("n1", 8192, "runc", "runsc", "kata")
	set := get[wire.Tenant](b, http.StatusOK, "PATCH", "/v1/tenants/acme", `{"set": {"runtimes": ["runsc", "kata"], "max_sandboxes": 50}}`, asOps()...)
	if diff := cmp.Diff([]string{"runsc", "kata"}, set.Runtimes); diff != "" || set.Own["max_sandboxes"] != 50 {
		t.Errorf("tenant %+v, runtimes (-want +got):\n%s", set, diff)
	}
	for body, want := range map[string]string{`{}`: "runsc", `{"runtime": "kata"}`: "kata"} {
		testbed.Diff(t, fmt.Sprintf("%s asks for", body), want, b.asked(body).Spec.Runtime)
	}
	p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", "/v1/sandboxes", `{"runtime": "runc"}`, asAcme()...)
	if len(p.Errors) != 1 || !strings.Contains(p.Errors[0].Detail, "may have runsc, kata") {
		t.Errorf("a runtime that the tenant may not have: %+v", p.Errors)
	}
	// What is not offered is refused, not replaced.
	get[wire.Tenant](b, http.StatusOK, "PATCH", "/v1/tenants/acme", `{"set": {"runtimes": ["gone"]}}`, asOps()...)
	p = b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", "/v1/sandboxes", `{}`, asAcme()...)
	if len(p.Errors) != 1 || !strings.Contains(p.Errors[0].Detail, "the default of your tenant") {
		t.Errorf("a default that no node offers: %+v", p.Errors)
	}
	for _, change := range []struct{ method, body string }{{"PATCH", `{"default": ["runtimes"]}`}, {"PUT", `{"max_sandboxes": 50}`}} {
		get[wire.Tenant](b, http.StatusOK, "PATCH", "/v1/tenants/acme", `{"set": {"runtimes": ["runsc"]}}`, asOps()...)
		set = get[wire.Tenant](b, http.StatusOK, change.method, "/v1/tenants/acme", change.body, asOps()...)
		if len(set.Runtimes) != 0 || set.Own["max_sandboxes"] != 50 {
			t.Errorf("after %s %s: %+v", change.method, change.body, set)
		}
	}
	testbed.Diff(t, "a tenant without a list gets", "runc", b.asked(`{"runtime": "runc"}`).Spec.Runtime)
	many := `"r` + strings.Join([]string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16"}, `", "r`) + `"`
	get[wire.Tenant](b, http.StatusOK, "PATCH", "/v1/tenants/acme", `{"set": {"runtimes": [`+many+`]}}`, asOps()...)
	for _, list := range []string{many + `, "r17"`, `"a", "a"`, `"a,b"`, `""`} {
		p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "PATCH", "/v1/tenants/acme", `{"set": {"runtimes": [`+list+`]}}`, asOps()...)
		if len(p.Errors) != 1 || p.Errors[0].Pointer != "/set/runtimes" {
			t.Errorf("%s: %+v", list, p.Errors)
		}
	}
	b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "PATCH", "/v1/tenants/acme", `{"set": {"runtimes": ["a"]}, "default": ["runtimes"]}`, asOps()...)
}

// warm adds a member of the warm pool with the limits of a create that asks for none, and returns its id.
func (b *bundle) warm(node, runtime string) string {
	b.t.Helper()
	m := store.Member{
		ID: farm.NewID(farm.SandboxPrefix), Node: node, Image: "python", Runtime: runtime, Network: farm.NetworkNone, Resources: farm.Resources{}.OrDefault(),
	}
	testbed.Must(b.t, b.store.BeginMember(b.t.Context(), m))
	testbed.Must(b.t, b.store.MemberReady(b.t.Context(), m))
	return m.ID
}

// A create gets a member of the warm pool that has its runtime, and no other.
func TestPoolMembersHaveTheRuntime(t *testing.T) {
	t.Parallel()
	b := setup(t, withAdmin)
	b.offer("n1", 8192, "runc", "runsc")
	b.offer("n2", 8192, "runsc")
	standard1, named1, standard2 := b.warm("n1", ""), b.warm("n1", "runsc"), b.warm("n2", "")
	testbed.Diff(t, "runc", standard1, b.asked(`{"network": "none", "runtime": "runc"}`).ID)
	if box := b.asked(`{"network": "none", "runtime": "runc"}`); box.Pooled {
		t.Errorf("a second runc got the member %s of another runtime", box.ID)
	}
	got := []string{b.asked(`{"network": "none", "runtime": "runsc"}`).ID, b.asked(`{"network": "none", "runtime": "runsc"}`).ID}
	slices.Sort(got)
	want := []string{named1, standard2}
	slices.Sort(want)
	testbed.Diff(t, "runsc got", want, got)
}

// gVisor cannot change the limits of a member, so a create with others starts cold and leaves the pool as it is.
func TestPoolMembersUnderGVisorKeepTheirLimits(t *testing.T) {
	t.Parallel()
	b := setup(t, withAdmin)
	b.offer("n1", 8192, "runc", "runsc")
	b.offer("n2", 8192, "runsc")
	shared, named, standard := b.warm("n1", ""), b.warm("n1", "runsc"), b.warm("n2", "")
	for _, resources := range []string{`{"memory_mb": 2049}`, `{"cpus": 0.5}`, `{"pids": 100}`} {
		box := b.asked(`{"network": "none", "runtime": "runsc", "resources": ` + resources + `}`)
		testbed.Check(t, !box.Pooled, "%s under gVisor got the member %s", resources, box.ID)
	}
	testbed.Diff(t, "a create that leaves the runtime to the node", shared, b.asked(`{"network": "none", "resources": {"memory_mb": 2049}}`).ID)
	box := b.asked(`{"network": "none", "resources": {"memory_mb": 2049}}`)
	testbed.Check(t, !box.Pooled, "a create that leaves the runtime to the node got the member %s under gVisor", box.ID)
	want := []string{named, standard}
	slices.Sort(want)
	got := []string{b.asked(`{"network": "none", "runtime": "runsc"}`).ID, b.asked(`{"network": "none", "runtime": "runsc"}`).ID}
	slices.Sort(got)
	testbed.Diff(t, "creates with the usual limits got", want, got)
}

// withMemory gives the server a budget of 16 MiB.
func withMemory(m **budget.Budget) option {
	return func(_ *api.Config, d *api.Deps) {
		*m = budget.New(16 << 20)
		d.Memory = *m
	}
}

// slowBody is a request whose body is sent in two parts, the second one when finish is called.
type slowBody struct {
	pipe   *io.PipeWriter
	rest   string
	answer chan int
}

func (b *bundle) slow(target, key, body string, headers ...string) *slowBody {
	b.t.Helper()
	r, w := io.Pipe()
	request, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, b.web.URL+target, r)
	testbed.Must(b.t, err)
	request.Header.Set("X-API-Key", key)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	request.ContentLength = int64(len(body))
	s := &slowBody{pipe: w, rest: body[len(body)/2:], answer: make(chan int, 1)}
	go func() {
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			s.answer <- 0
			return
		}
		_ = answer.Body.Close()
		s.answer <- answer.StatusCode
	}()
	go func() { _, _ = io.WriteString(w, body[:len(body)/2]) }()
	return s
}

func (s *slowBody) finish() int {
	_, _ = io.WriteString(s.pipe, s.rest)
	_ = s.pipe.Close()
	return <-s.answer
}

// A body is charged while it is read. Who has used up a share waits; others do not.
func TestBodiesAreCharged(t *testing.T) {
	t.Parallel()
	var memory *budget.Budget
	b := setup(t, withKeys, withMemory(&memory))
	const limit = 7 << 20 // of one tenant
	const step = budget.SmallBytes * budget.BodyWeight
	large := `{"code":"` + strings.Repeat("#", 3<<20) + `"}`
	for name, headers := range map[string][]string{"/v1/run": nil, "/mcp": {"Content-Type", "application/json", "Accept", "application/json, text/event-stream"}} {
		one := b.slow(name, key, large, headers...)
		testbed.Until(t, "the first body is charged", func() bool { return memory.Stats().Used == limit })
		two := b.slow(name, key, large, headers...)
		testbed.Until(t, "the second body waits", func() bool { return memory.Stats().Waiting == step })
		small := get[wire.Job](b, http.StatusAccepted, "POST", "/v1/run", `{"code":"1"}`, "X-API-Key", key)
		other := b.slow(name, otherKey, large, headers...)
		testbed.Until(t, "another tenant's body is charged", func() bool { return memory.Stats().Used == 2*limit })
		for i, s := range []*slowBody{one, two, other} {
			if status := s.finish(); status == 0 || status >= 429 {
				t.Errorf("%s: body %d was answered with %d", name, i, status)
			}
		}
		if small.ID == "" {
			t.Error("a small request got no job")
		}
		testbed.Until(t, "everything is given back", func() bool { return memory.Stats().Used == 0 })
	}
}

// A caller that leaves, or waits for its job, holds no memory.
func TestMemoryOfABodyIsGivenBack(t *testing.T) {
	t.Parallel()
	var memory *budget.Budget
	b := setup(t, withMemory(&memory))
	box := b.sandbox()
	gone := b.slow("/v1/run", "", `{"code":"`+strings.Repeat("#", 1<<20)+`"}`)
	testbed.Until(t, "the half of it that came is charged, and the next step", func() bool { return memory.Stats().Used == 4<<20 })
	_ = gone.pipe.CloseWithError(errors.New("the caller has left"))
	testbed.Until(t, "its memory is given back", func() bool { return memory.Stats().Used == 0 })

	code := `{"code":"block","env":{"A":"` + strings.Repeat("x", 200<<10) + `"}}`
	waiting := make(chan int, 1)
	go func() {
		answer, _ := b.do("POST", "/v1/sandboxes/"+box+"/execute?wait=60", code)
		waiting <- answer.StatusCode
	}()
	testbed.Until(t, "the job runs", func() bool {
		return len(get[wire.List[wire.Job]](b, http.StatusOK, "GET", "/v1/jobs?kind=execute&state=running", nil).Items) == 1
	})
	testbed.Until(t, "its body is given back while it is waited for", func() bool { return memory.Stats().Used == 0 })
	close(b.worker.gate)
	testbed.Diff(t, "the waiting request was answered with", http.StatusOK, <-waiting)
}

// broken fails to take jobs.
type broken struct{ service.Submitter }

func (broken) Submit(context.Context, store.Accept) (store.Accepted, error) {
	return store.Accepted{}, errors.New("the disk is on fire")
}

// An entry of a batch that fails by a fault of the farm is logged with the cause, as the request would be.
func TestFaultOfABatchEntryIsLogged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.sandbox()
	server, err := api.New(api.Config{}, api.Deps{Blobs: b.blobs, Queues: depths{}, Store: b.store, Submitter: broken{}, Logger: b.logger()})
	testbed.Must(t, err)
	t.Cleanup(server.Stop)
	second := b.over(server)
	got := get[wire.BatchResult](second, http.StatusMultiStatus, "POST", "/v1/jobs/batch", `{"jobs":[{"kind":"execute","sandbox_id":"`+box+`","code":"1"},{"kind":"nap"}]}`)
	if got.Jobs[0].Error == nil || got.Jobs[0].Error.Code != string(farm.CodeInternal) || strings.Contains(got.Jobs[0].Error.Detail, "fire") {
		t.Errorf("the entry: %+v", got.Jobs[0])
	}
	if log := b.log.String(); strings.Count(log, "the disk is on fire") != 1 || strings.Count(log, "request failed") != 1 {
		t.Errorf("the log has not one line with the cause:\n%s", log)
	}
}
