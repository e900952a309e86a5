package worker

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// volume answers what the worker asks of Docker about volumes, which are notes here.
func (e *fakeEngine) volume(w http.ResponseWriter, r *http.Request, name string) {
	name = strings.TrimPrefix(name, "test-note-")
	switch labels, ok := e.notes[name]; {
	case r.Method == http.MethodPost:
		var body struct {
			Name   string
			Labels map[string]string
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		if !strings.HasPrefix(body.Name, "test-note-") {
			http.Error(w, `{"message":"the fake has no other volumes"}`, http.StatusNotImplemented)
			return
		}
		e.notes[strings.TrimPrefix(body.Name, "test-note-")] = body.Labels
		_ = json.NewEncoder(w).Encode(body)
	case name == "":
		list := []any{}
		for name, labels := range e.notes {
			list = append(list, map[string]any{"Name": "test-note-" + name, "Labels": labels})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"Volumes": list})
	case !ok:
		http.Error(w, `{"message":"no such volume"}`, http.StatusNotFound)
	case r.Method == http.MethodDelete:
		delete(e.notes, name)
		w.WriteHeader(http.StatusNoContent)
	default:
		_ = json.NewEncoder(w).Encode(map[string]any{"Name": "test-note-" + name, "Labels": labels})
	}
}

func (e *fakeEngine) note(sandbox string) map[string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.notes[sandbox])
}

// contain puts the container of a member there, as it was made: nobody's.
func (e *fakeEngine) contain(id, epoch string, running bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.containers["test-"+id] = running
	e.labels["test-"+id] = map[string]string{
		engine.LabelNamespace: "test", engine.LabelSandbox: id, engine.LabelNode: "n1", labelMember: "python", labelEpoch: epoch,
	}
}

// pooling makes a worker on a measured node whose settings ask for members.
func (b *bundle) pooling(memoryMB int, pool ...string) *Worker {
	b.t.Helper()
	b.cfg.Pool, b.cfg.MemoryOvercommit, b.cfg.CPUOvercommit = pool, 1, 100
	w := b.measured(memoryMB, 4)
	_, err := w.lookAtEpoch(b.t.Context())
	must(b.t, err)
	return w
}

// member puts a ready member with its container, its promise and its agent there.
func (b *bundle) member(w *Worker, change func(*store.Member)) store.Member {
	b.t.Helper()
	version, err := w.memberVersion(b.t.Context(), "python")
	must(b.t, err)
	m := store.Member{
		ID: farm.NewID(farm.SandboxPrefix), Node: "n1", Image: "python", Network: farm.NetworkNone, Version: version, Worker: w.id,
		Resources: farm.Resources{MemoryMB: 2048, CPUs: 2, PIDs: 256, DiskMB: 1024},
	}
	if change != nil {
		change(&m)
	}
	_, _, err = b.store.Reserve(b.t.Context(), store.ReserveRequest{Node: "n1", Capacity: w.room.size(), Sandbox: farm.Ref{ID: m.ID}, Want: m.Resources.Capacity(), Force: true})
	must(b.t, err)
	b.agent(farm.Ref{ID: m.ID}, w)
	b.eng.contain(m.ID, w.epoch.get(), true)
	m.Container = "test-" + m.ID
	must(b.t, b.store.BeginMember(b.t.Context(), m))
	must(b.t, b.store.MemberReady(b.t.Context(), m))
	return m
}

// claimed accepts the creation of a sandbox that has claimed a member.
func (b *bundle) claimed(m store.Member, change func(*farm.Sandbox)) (job, sandbox farm.Ref) {
	b.t.Helper()
	got, err := b.store.ClaimMember(b.t.Context(), store.MemberClaim{Tenant: tenant, Image: m.Image, Network: m.Network, DiskMB: m.Resources.DiskMB, Nodes: []string{"n1"}})
	must(b.t, err)
	box := &farm.Sandbox{
		ID: got.ID, Tenant: tenant, Node: got.Node, Pooled: true, CreatedAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour),
		Spec: farm.SandboxSpec{Image: "python", Network: farm.NetworkNone, TTLSeconds: 3600, Resources: m.Resources},
	}
	if change != nil {
		change(box)
	}
	job = b.accept(farm.KindCreate, box.ID, &farm.Request{Sandbox: &box.Spec}, func(a *store.Accept) {
		a.Sandbox, a.Job.Queue = box, farm.NodeQueue(got.Node)
	})
	return job, farm.Ref{Tenant: tenant, ID: box.ID}
}

// idle counts the members that wait for a create.
func (b *bundle) idle() int {
	b.t.Helper()
	list, err := b.store.Members(b.t.Context())
	must(b.t, err)
	n := 0
	for _, m := range list {
		if m.State == store.MemberIdle {
			n++
		}
	}
	return n
}

// in gives a clock so much later.
func in(d time.Duration) func() time.Time { return func() time.Time { return time.Now().Add(d) } }

func TestPoolTargets(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]map[string]int{
		"": {}, "none": {}, "python=0": {"python": 0}, "python=2,node=1": {"python": 2, "node": 1}, "python=1000": {"python": 1000},
	} {
		got, err := Config{Pool: split(text)}.poolTargets(0)
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%q gives %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"python", "python=", "python=-1", "python=1001", "=2", "Python=1", "python=1,python=2", "auto,python=1", "none,auto", "python=two"} {
		if err := (Config{Pool: split(text)}).Validate(); err == nil {
			t.Errorf("%q is allowed", text)
		}
	}
	for _, c := range []struct {
		alone  bool
		host   int
		images string
		want   int
	}{
		{true, autoHostMB, "python", 2}, {true, autoHostMB - 1, "python", 0}, {false, autoHostMB, "python", 0}, {true, autoHostMB, "node", 0},
	} {
		got, err := Config{Pool: []string{"auto"}, Alone: c.alone, Images: split(c.images)}.poolTargets(c.host)
		if err != nil || got["python"] != c.want {
			t.Errorf("auto, %+v: %v, %v", c, got, err)
		}
	}
	for fill, ok := range map[int]bool{-1: false, 1: true, 64: true, 65: false} {
		if err := (Config{PoolFill: fill}).Validate(); (err == nil) != ok {
			t.Errorf("pool_fill %d: %v", fill, err)
		}
	}
}

func split(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}
