package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
)

// waiting submits a create that no worker runs.
func (b *bundle) waiting(tenant string) *farm.Job {
	b.t.Helper()
	box := &farm.Sandbox{ID: farm.NewID(farm.SandboxPrefix), Tenant: tenant, Spec: farm.SandboxSpec{Image: "python", TTLSeconds: 3600}}
	out, err := b.store.Accept(b.t.Context(), store.Accept{
		Job:     &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: tenant, Kind: farm.KindCreate, SandboxID: box.ID, Queue: farm.QueueCPU},
		Request: &farm.Request{Sandbox: &box.Spec}, Sandbox: box,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return out.Job
}

func TestWaitingCreateShowsItsPosition(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	auth := []string{"Authorization", "Bearer " + key}
	var last *farm.Job
	for range 3 {
		last = b.waiting("acme")
	}
	b.waiting("rival")
	got := get[wire.Job](b, http.StatusOK, "GET", "/v1/jobs/"+last.ID, nil, auth...)
	if got.State != "queued" || got.Position != 3 || got.EstimateSeconds != nil {
		t.Errorf("waiting create: %+v", got)
	}
	_, text := b.do("GET", "/v1/jobs/"+last.ID, nil, auth...)
	if !strings.Contains(string(text), `"estimate_seconds":null`) {
		t.Errorf("an estimate that is not known is not null: %s", text)
	}
	for i := range 2 { // two creates have started
		r := store.ReserveRequest{Node: "n1", Capacity: farm.Capacity{MemoryMB: 100, CPUs: 1}, Sandbox: farm.Ref{Tenant: "acme", ID: fmt.Sprint(i)}, Queue: farm.QueueCPU}
		if _, _, err := b.store.Reserve(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond) // the estimate is computed from the time between starts
	}
	if got = get[wire.Job](b, http.StatusOK, "GET", "/v1/jobs/"+last.ID, nil, auth...); got.EstimateSeconds == nil || *got.EstimateSeconds < 1 || *got.EstimateSeconds > 60 {
		t.Errorf("estimate: %+v", got.EstimateSeconds)
	}
	// A job of that sandbox has its position in the FIFO of the sandbox.
	out, err := b.store.Accept(t.Context(), store.Accept{
		Job: &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: "acme", Kind: farm.KindExecute, SandboxID: last.SandboxID}, Request: &farm.Request{},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got = get[wire.Job](b, http.StatusOK, "GET", "/v1/jobs/"+out.Job.ID, nil, auth...); got.Position != 2 || got.EstimateSeconds != nil {
		t.Errorf("behind the create: %+v", got)
	}
}

// TestQueuedJobSaysWhatItWaitsFor looks at the same create while there is no worker, no room, too little of a share, and no obstacle.
func TestQueuedJobSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	var later atomic.Int64 // seconds
	b := setup(t, func(_ *api.Config, d *api.Deps) {
		d.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load()) * time.Second) }
	})
	says := func(job *farm.Job, code, message string) {
		t.Helper()
		got := get[wire.Job](b, http.StatusOK, "GET", "/v1/jobs/"+job.ID, nil)
		if got.Waiting == nil || got.Waiting.Code != code || !strings.Contains(got.Waiting.Message, message) {
			t.Errorf("job %s waits for %+v, want %s: %s", job.ID, got.Waiting, code, message)
		}
	}
	accept := func(a store.Accept) *farm.Job {
		t.Helper()
		a.Job.Tenant, a.Job.Redacted = access.DefaultTenant, a.Request
		if a.Sandbox != nil {
			a.Sandbox.Tenant = access.DefaultTenant
		}
		out, err := b.store.Accept(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		return out.Job
	}
	worker := farm.Worker{
		ID: "wrk_1", Node: "n1", Queues: []string{farm.QueueCPU}, Images: []farm.Image{{Name: "python"}}, Slots: 4,
		Capacity: farm.Capacity{MemoryMB: 4096, CPUs: 4}, Reserved: farm.Capacity{MemoryMB: 4096, CPUs: 4},
	}
	beat := func() {
		t.Helper()
		later.Add(5) // what is known of the nodes is read again
		if err := b.store.Heartbeat(t.Context(), worker); err != nil {
			t.Fatal(err)
		}
	}
	create := storetest.Create()
	create.Sandbox.Spec.Image, create.Sandbox.Spec.Resources = "python", farm.Resources{MemoryMB: 512, CPUs: 1}
	first := accept(create)
	if err := b.store.RemoveWorker(t.Context(), worker.ID); err != nil {
		t.Fatal(err)
	}
	later.Add(5)
	says(first, "no_worker", "No worker is alive")
	beat()
	says(first, "no_room", "No node has 512 MiB of memory and 1 cores free")
	worker.Draining = true
	beat()
	says(first, "drain", "take no new sandboxes")
	worker.Draining, worker.Reserved = false, farm.Capacity{}
	beat()
	says(first, "queue", "It is next in the queue cpu.")
	says(accept(storetest.Execute(first.SandboxID)), "fifo", "one comes first: "+first.ID+" (create, queued)")
}

func TestSandboxLargerThanAnyNodeIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for id, capacity := range map[string]farm.Capacity{"wrk_1": {MemoryMB: 4096, CPUs: 16}, "wrk_2": {MemoryMB: 8192, CPUs: 4}} {
		err := b.store.Heartbeat(t.Context(), farm.Worker{ID: id, Node: "node-of-" + id, Images: []farm.Image{{Name: "python", Languages: []string{"python"}}}, Capacity: capacity, Reserved: farm.Capacity{MemoryMB: 4000}, Machine: &farm.Machine{MemoryMB: 9000, UsedMB: 100, CPUs: 2, Load: 0.5}})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/v1/sandboxes", "/v1/run"} {
		for size, fits := range map[string]bool{
			`"memory_mb":8192,"cpus":4`: true, `"memory_mb":4096,"cpus":16`: true, // full nodes: the create waits
			`"memory_mb":8193,"cpus":1`: false, `"memory_mb":64,"cpus":16.5`: false, `"memory_mb":8192,"cpus":16`: false,
		} {
			body := fmt.Sprintf(`{"resources":{%s}}`, size)
			if path == "/v1/run" {
				body = fmt.Sprintf(`{"code":"1","resources":{%s}}`, size)
			}
			if fits {
				if answer, text := b.do("POST", path, body); answer.StatusCode/100 != 2 {
					t.Errorf("%s %s: %d %s", path, body, answer.StatusCode, text)
				}
				continue
			}
			p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", path, body)
			if !strings.Contains(p.Detail, "larger than any node: the largest has 8192 MiB and 4 cores") {
				t.Errorf("%s %s: %s", path, body, p.Detail)
			}
		}
	}
	list := get[wire.Items[wire.Worker]](b, http.StatusOK, "GET", "/v1/workers", nil)
	if got := list.Items[1]; got.Capacity != (wire.Room{MemoryMB: 8192, CPUs: 4}) || got.Promised != (wire.Room{MemoryMB: 4000}) || got.Machine == nil || *got.Machine != (wire.Machine{MemoryMB: 9000, UsedMB: 100, CPUs: 2, Load: 0.5}) {
		t.Errorf("worker %+v", got)
	}
}

// Overcommit lets many sandboxes share a host. It does not let one be larger than the host.
func TestSandboxLargerThanAnyHostIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	image := []farm.Image{{Name: "python", Languages: []string{"python"}}}
	for id, largest := range map[string]int{"wrk_1": 1023, "wrk_2": 2048} {
		w := farm.Worker{ID: id, Node: "node-of-" + id, Images: image, Capacity: farm.Capacity{MemoryMB: 16 * largest, CPUs: 128}, LargestMB: largest}
		if err := b.store.Heartbeat(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
	for memory, fits := range map[int]bool{2047: true, 2048: true, 2049: false, 16 * 2048: false} {
		body := fmt.Sprintf(`{"resources":{"memory_mb":%d}}`, memory)
		if fits {
			if answer, text := b.do("POST", "/v1/sandboxes", body); answer.StatusCode/100 != 2 {
				t.Errorf("%s: %d %s", body, answer.StatusCode, text)
			}
			continue
		}
		if p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", "/v1/sandboxes", body); !strings.Contains(p.Detail, "the largest has 2048 MiB and 128 cores") {
			t.Errorf("%s: %s", body, p.Detail)
		}
	}
}

func TestFullQueueIsReportedToTheCaller(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys, func(c *api.Config, _ *api.Deps) {
		c.Limits = farm.DefaultLimits()
		c.Limits.MaxQueueDepth = 3
	})
	for range 2 {
		b.waiting("acme")
	}
	if answer, text := b.do("POST", "/v1/sandboxes?wait=20", "{}", "Authorization", "Bearer "+key); answer.StatusCode != http.StatusCreated {
		t.Fatalf("one below the limit: %d %s", answer.StatusCode, text)
	}
	b.waiting("acme")
	answer, text := b.do("POST", "/v1/sandboxes", "{}", "Authorization", "Bearer "+key)
	if answer.StatusCode != http.StatusTooManyRequests || answer.Header.Get("Retry-After") == "" || !strings.Contains(string(text), "3 jobs wait in queue cpu") {
		t.Errorf("at the limit: %d %v %s", answer.StatusCode, answer.Header, text)
	}
	if answer, text := b.do("POST", "/v1/sandboxes?wait=20", "{}", "Authorization", "Bearer "+otherKey); answer.StatusCode != http.StatusCreated {
		t.Errorf("another tenant: %d %s", answer.StatusCode, text)
	}
}
