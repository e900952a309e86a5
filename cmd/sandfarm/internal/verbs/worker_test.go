package verbs_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
)

// A node is named by its id, or by the id or host of a worker on it; draining waits until nothing runs.
func TestWorkerVerbs(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	left := wire.Drain{Node: "n1", State: "draining", Sandboxes: 2, Jobs: 1}
	f.Routes["GET /v1/workers"] = f.gives(200, wire.Items[wire.Worker]{Items: []wire.Worker{
		{ID: "wrk_1", Node: "n1", Host: "alpha", Drain: &left}, {ID: "wrk_2", Node: "n2", Host: "beta"}, {ID: "wrk_3", Node: "n3", Host: "beta"},
	}})
	f.Routes["POST /v1/nodes/{id}/drain"] = func(w http.ResponseWriter, r *http.Request) {
		d := left
		d.Node = r.PathValue("id")
		f.gives(200, d)(w, r)
	}
	var asked atomic.Int32
	f.Routes["GET /v1/nodes/{id}/drain"] = func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		f.gives(200, wire.Drain{Node: r.PathValue("id"), State: "drained"})(w, r)
	}
	f.Routes["DELETE /v1/nodes/{id}/drain"] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	for args, want := range map[string]string{
		"worker drain n1":                     "n1: draining (sandboxes: 2, jobs: 1)\n",
		"worker drain alpha --idle hibernate": "n1: draining (sandboxes: 2, jobs: 1)\n",
		"worker drain wrk_2 --wait":           "n2: drained\n",
		"worker undrain alpha":                "n1 takes new sandboxes again\n",
	} {
		if got := f.sandfarm(t.Context(), "", strings.Fields(args)...); got.code != 0 || got.out != want && got.stderr != want {
			t.Errorf("%s: %+v, want %q", args, got, want)
		} else if waits := strings.Contains(got.stderr, "until the node's last sandbox is closed or expires; --idle close"); waits != strings.Contains(args, "--wait") {
			t.Errorf("%s: %+v", args, got)
		}
	}
	if asked.Load() != 1 {
		t.Errorf("the drain was read %d times, want once for --wait", asked.Load())
	}
	f.mu.Lock()
	requests := strings.Join(f.requests, "\n")
	f.mu.Unlock()
	for _, want := range []string{`POST /v1/nodes/n1/drain {"idle":"hibernate"}`, `POST /v1/nodes/n2/drain {"idle":"keep"}`, "DELETE /v1/nodes/n1/drain"} {
		if !strings.Contains(requests, want) {
			t.Errorf("no request %s in\n%s", want, requests)
		}
	}
	if got := f.sandfarm(t.Context(), "", "worker", "ls"); got.code != 0 || !strings.Contains(got.out, "draining (sandboxes: 2, jobs: 1)") {
		t.Errorf("ls: %+v", got)
	}
	for _, args := range []string{"worker drain beta", "worker drain", "worker drain n1 n2", "worker none"} {
		if got := f.sandfarm(t.Context(), "", strings.Fields(args)...); got.code != 2 {
			t.Errorf("%s: %+v, want a usage error", args, got)
		}
	}
}
