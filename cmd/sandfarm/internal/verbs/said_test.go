package verbs_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
)

// Each verb that changes something says on stderr what it did, or that there was nothing to do.
func TestVerbsSayWhatTheyDid(t *testing.T) {
	t.Parallel()
	ended := time.Now()
	done := wire.Job{ID: "job_9", State: "completed"}
	none := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	tests := map[string]struct {
		args string
		box  wire.Sandbox
		jobs []wire.Job // those that run in the sandbox
		job  wire.Job   // the answer to a cancel
		want string
	}{
		"CancelQueued":     {args: "job cancel job_1", job: wire.Job{ID: "job_1", State: "canceled"}, want: "canceled job_1"},
		"CancelRunning":    {args: "job cancel job_1", job: wire.Job{ID: "job_1", State: "running"}, want: "canceling job_1"},
		"CancelEnded":      {args: "job cancel job_1", job: wire.Job{ID: "job_1", State: "completed"}, want: "nothing to cancel: job_1 has already ended (completed)"},
		"Close":            {args: "sandbox close sbx_1", box: wire.Sandbox{State: "ready"}, want: "closed sbx_1"},
		"CloseClosed":      {args: "sandbox close sbx_1", box: wire.Sandbox{State: "expired", ClosedAt: &ended}, want: "nothing to close: sbx_1 has already ended (expired)"},
		"CloseOfARun":      {args: "sandbox close sbx_2", box: wire.Sandbox{State: "closing"}, want: "nothing to close: sbx_2 is closing already"},
		"Restart":          {args: "sandbox restart sbx_1", want: "restarted sbx_1"},
		"Interrupt":        {args: "sandbox interrupt sbx_1", jobs: []wire.Job{{ID: "job_2", Kind: "execute"}}, want: "interrupted sbx_1"},
		"InterruptIdle":    {args: "sandbox interrupt sbx_1", want: "nothing to interrupt: no code runs in sbx_1"},
		"InterruptCommand": {args: "sandbox interrupt sbx_1", jobs: []wire.Job{{ID: "job_2", Kind: "command"}}, want: `nothing to interrupt: no code runs in sbx_1; "sandfarm job cancel job_2" ends its command`},
		"Hibernate":        {args: "sandbox hibernate sbx_1", box: wire.Sandbox{State: "ready"}, want: "hibernated sbx_1"},
		"HibernateAgain":   {args: "sandbox hibernate sbx_1", box: wire.Sandbox{State: "hibernated"}, want: "nothing to do: sbx_1 was hibernated already"},
		"Resume":           {args: "sandbox resume sbx_1", box: wire.Sandbox{State: "hibernated"}, want: "resumed sbx_1"},
		"ResumeReady":      {args: "sandbox resume sbx_1", box: wire.Sandbox{State: "ready"}, want: "nothing to do: sbx_1 was not hibernated"},
		"PutStdin":         {args: "files put sbx_1 - in/a.txt", want: "put in/a.txt (2 B)"},
		"Move":             {args: "files mv sbx_1 a b", want: "renamed a to b"},
		"DeleteArtifact":   {args: "artifact rm art_1", want: "deleted art_1"},
		"Revoke":           {args: "key revoke key_1", want: "revoked key_1"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t)
			f.Routes["DELETE /v1/jobs/job_1"] = f.gives(http.StatusOK, test.job)
			f.Routes["GET /v1/jobs"] = f.gives(http.StatusOK, wire.List[wire.Job]{Items: test.jobs})
			f.Routes["GET /v1/sandboxes/{id}"] = f.gives(http.StatusOK, test.box)
			f.Routes["DELETE /v1/sandboxes/sbx_1"] = f.gives(http.StatusOK, done)
			f.Routes["DELETE /v1/sandboxes/sbx_2"] = f.gives(http.StatusConflict, wire.Problem{Status: 409, Code: "conflict", Detail: "Sandbox sbx_2 is closing.", RequestID: "req_1"})
			for _, verb := range []string{"interrupt", "restart", "hibernate", "resume"} {
				f.Routes["POST /v1/sandboxes/sbx_1/"+verb] = f.gives(http.StatusOK, done)
			}
			f.Routes["POST /v1/sandboxes/sbx_1/files/move"] = none
			f.Routes["PUT /v1/sandboxes/sbx_1/files/in/a.txt"] = f.created
			f.Routes["DELETE /v1/artifacts/art_1"], f.Routes["DELETE /v1/keys/key_1"] = none, none
			if got := f.sandfarm(t.Context(), "a\n", strings.Fields(test.args)...); got != (outputs{0, "", test.want + "\n"}) {
				t.Errorf("%+v, want %q", got, test.want)
			}
		})
	}
}

// Not every refusal of a close says that the sandbox is closing.
func TestCloseThatIsRefused(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["GET /v1/sandboxes/{id}"] = f.gives(http.StatusOK, wire.Sandbox{State: "starting"})
	f.Routes["DELETE /v1/sandboxes/sbx_1"] = f.gives(http.StatusConflict, wire.Problem{Status: 409, Code: "conflict", Detail: "Not now.", RequestID: "req_1"})
	if got := f.sandfarm(t.Context(), "", "sandbox", "close", "sbx_1"); got.code != 1 || !strings.Contains(got.stderr, "Not now.") {
		t.Errorf("%+v", got)
	}
}

// What is used up by sandboxes is not free again in seconds.
func TestQuotaOfSandboxesSaysWhatHelps(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["POST /v1/sandboxes"] = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "600")
		f.gives(http.StatusTooManyRequests, wire.Problem{Status: 429, Code: "exhausted", Detail: "The quota is used up.", RequestID: "req_1", Quota: &wire.Quota{Name: "max_sandboxes"}})(w, r)
	}
	if got := f.sandfarm(t.Context(), "", "sandbox", "create"); got.code != 1 || got.stderr != "sandfarm: The quota is used up. Close a sandbox that is not needed (sandfarm sandbox ls).\n" {
		t.Errorf("%+v", got)
	}
}
