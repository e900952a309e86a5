package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// withRate gives acme a kernel and then so many requests in a minute, of a minute that does not pass.
func (b *bundle) withRate(rate int) (notebookKernel, *frontend, farm.Quotas) {
	b.t.Helper()
	k := b.kernel(asAcme()...)
	f := b.frontend(k.ID, "?session_id=s&token="+key)
	f.until(f.send("shell", "kernel_info_request", map[string]any{})) // the connection is counted by no quota
	b.redis.SetTime(time.Now())
	get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/acme", fmt.Sprintf(`{"requests_per_minute": %d}`, rate), asOps()...)
	quotas := farm.DefaultQuotas()
	quotas.RequestsPerMinute = rate
	return k, f, quotas
}

// A request that the key's scopes do not allow counts, too: each leaves an entry of the audit.
func TestRefusedScopesCountAsRequests(t *testing.T) {
	t.Parallel()
	b := setup(t, withAdmin)
	_, _, quotas := b.withRate(2)
	for _, want := range []int{http.StatusForbidden, http.StatusForbidden, http.StatusTooManyRequests} {
		if answer, body := b.do("GET", "/v1/keys", nil, asAcme()...); answer.StatusCode != want {
			t.Errorf("GET /v1/keys without the scope admin: %d %s, want %d", answer.StatusCode, body, want)
		}
	}
	if left, _ := b.store.AdmitMore(t.Context(), "acme", 1, quotas); left != 0 {
		t.Error("requests are left")
	}
}

// A WebSocket is one request, and its messages are more: a notebook with many cells does not go around requests_per_minute.
func TestJupyterMessagesCountAsRequests(t *testing.T) {
	t.Parallel()
	b := setup(t, withAdmin)
	_, f, quotas := b.withRate(100)
	f.until(f.send("shell", "execute_request", map[string]any{"code": "print 1"}))
	f.until(f.send("shell", "execute_request", map[string]any{"code": ""})) // no job
	f.until(f.send("shell", "kernel_info_request", map[string]any{}))       // answered by the API
	f.until(f.send("shell", "conjure_request", map[string]any{}))           // as this
	for _, kind := range []string{"complete_request", "inspect_request", "comm_info_request", "history_request", "is_complete_request"} {
		f.until(f.send("shell", kind, map[string]any{}))
	}
	if left, _ := b.store.AdmitMore(t.Context(), "acme", 100, quotas); left != 94 {
		t.Errorf("after a cell and five questions %d of 100 requests are left", left)
	}
	interrupt := f.send("control", "interrupt_request", map[string]any{})
	if diff := cmp.Diff([]string{"iopub status busy", "control interrupt_reply error", "iopub status idle"}, f.until(interrupt)); diff != "" {
		t.Errorf("an interrupt beyond the quota (-want +got):\n%s", diff)
	}
}

// "Run All" of a notebook does not fail at the quota: cells beyond it run later.
func TestJupyterCellsWaitForTheQuota(t *testing.T) {
	t.Parallel()
	b := setup(t, withAdmin)
	_, f, quotas := b.withRate(600)
	if got, err := b.store.AdmitMore(t.Context(), "acme", 598, quotas); got != 598 {
		t.Fatal(got, err)
	}
	var cells []string
	for range 4 {
		cells = append(cells, f.send("shell", "execute_request", map[string]any{"code": "print 1"}))
	}
	p := newPage()
	p.until(f, cells[:2]...)
	f.until(f.send("shell", "kernel_info_request", map[string]any{})) // all have come in
	b.redis.SetTime(time.Now().Add(time.Hour))
	p.until(f, cells...)
	for i, id := range cells {
		if diff := cmp.Diff([]string{"ok"}, p.replies[id]); diff != "" {
			t.Errorf("cell %d of 4 (-want +got):\n%s", i+1, diff)
		}
	}
	if left, _ := b.store.AdmitMore(t.Context(), "acme", 600, quotas); left != 598 {
		t.Errorf("after the two that waited %d of 600 requests are left", left)
	}
}

// A cell that waits for the quota is no job yet, so the interrupt of a kernel ends it here.
func TestJupyterInterruptEndsCellsThatWaitForTheQuota(t *testing.T) {
	t.Parallel()
	b := setup(t, withAdmin)
	k, f, quotas := b.withRate(1)
	if got, err := b.store.AdmitMore(t.Context(), "acme", 1, quotas); got != 1 {
		t.Fatal(got, err)
	}
	cells := []string{f.send("shell", "execute_request", map[string]any{"code": "print 1"}), f.send("shell", "execute_request", map[string]any{"code": "print 2"})}
	f.until(f.send("shell", "kernel_info_request", map[string]any{})) // both have come in
	testbed.Until(t, "the first was refused before its turn and when it came", func() bool {
		_, figures := b.do("GET", "/metrics", nil, asOps()...)
		return strings.Contains(string(figures), `sandfarm_quota_refusals_total{quota="requests_per_minute"} 2`)
	})
	get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/acme", `{"requests_per_minute": null}`, asOps()...)
	b.do("POST", "/jupyter/api/kernels/"+k.ID+"/interrupt", nil, asAcme()...)
	for _, id := range cells {
		if diff := cmp.Diff([]string{"iopub status busy", "shell execute_reply aborted", "iopub status idle"}, f.until(id)); diff != "" {
			t.Errorf("a cell that waited (-want +got):\n%s", diff)
		}
	}
}

// Cells that wait for the quota after their client has left were submitted although their key was revoked meanwhile. That one is refused concerns its
// session, and went to all clients.
func TestJupyterCellsOfARevokedKeyDoNotRun(t *testing.T) {
	t.Parallel()
	b := setup(t, withAdmin)
	made := b.newKey(wire.KeyRequest{Tenant: "acme"}, otherKey)
	k, _, quotas := b.withRate(600)
	watcher, same := b.frontend(k.ID, "?session_id=watcher&token="+key), b.frontend(k.ID, "?session_id=other&token="+key)
	watcher.next, same.next = 5000, 6000                                    // their messages have ids of their own
	same.until(same.send("shell", "kernel_info_request", map[string]any{})) // it has joined: the session is that of the key that joins last
	f := b.frontend(k.ID, "?session_id=other&token="+made.Secret)
	if _, err := b.store.AdmitMore(t.Context(), "acme", 600, quotas); farm.CodeOf(err) != farm.CodeExhausted {
		t.Fatal(err) // the connections took three
	}
	cell := f.send("shell", "execute_request", map[string]any{"code": "print 1"})
	f.until(f.send("shell", "kernel_info_request", map[string]any{})) // it has come in
	_ = f.conn.Close(websocket.StatusGoingAway, "")
	b.do("DELETE", "/v1/keys/"+made.Key.ID, nil, asOps()...)
	b.refused(made.Secret)
	b.redis.SetTime(time.Now().Add(time.Hour))
	var shown []string
	for len(shown) == 0 || shown[len(shown)-1] != "idle" {
		if m := same.read(); m.Parent.ID == cell && m.Type == "status" {
			shown = append(shown, fmt.Sprint(m.Content["execution_state"]))
		} else if m.Parent.ID == cell {
			shown = append(shown, m.Type)
		}
	}
	if diff := cmp.Diff([]string{"busy", "execute_input", "error", "execute_reply", "idle"}, shown); diff != "" {
		t.Errorf("the session saw (-want +got):\n%s", diff)
	}
	for own := watcher.send("shell", "kernel_info_request", map[string]any{}); ; {
		m := watcher.read()
		if m.Parent.ID == cell {
			t.Errorf("another client sees %+v", m)
		}
		if m.Parent.ID == own && m.Type == "kernel_info_reply" {
			break
		}
	}
	for _, job := range get[wire.List[wire.Job]](b, http.StatusOK, "GET", "/v1/jobs", nil, asAcme()...).Items {
		if job.Kind == string(farm.KindExecute) {
			t.Errorf("the cell is a job: %+v", job)
		}
	}
}
