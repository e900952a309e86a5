package verbs_test

import (
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/testbed"
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

// TestRunSaysWhatItWaitsFor runs code that is queued for a while: what it waits for is said after some time, and again when it changes.
func TestRunSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	times, looked := make(chan time.Time), make(chan struct{})
	f.After = func(time.Duration) <-chan time.Time { return times }
	messages := []string{"No worker is alive.", "No worker is alive.", "It is next in the queue cpu."}
	asked := 0
	f.Routes["GET /v1/jobs/job_1"] = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("wait") != "" {
			f.read(w, r)
			return
		}
		if asked == len(messages) {
			f.answer(w, http.StatusOK, wire.Job{ID: "job_1", State: "running"})
			return
		}
		job := wire.Job{ID: "job_1", State: "queued", Waiting: &wire.Waiting{Code: "x", Message: messages[asked]}}
		asked++
		f.answer(w, http.StatusOK, job)
		looked <- struct{}{}
	}
	f.Script = func(send func(string, any), _ <-chan struct{}) (string, *wire.Result) {
		for range messages {
			times <- time.Time{}
			<-looked
		}
		times <- time.Time{} // the last answer is printed; the next look finds that it has begun
		return "completed", &wire.Result{Execute: &wire.ExecuteResult{}}
	}
	got := f.sandfarm(t.Context(), "print(1)", "run", "-")
	want := "sandfarm: job_1 waits: No worker is alive.\nsandfarm: job_1 waits: It is next in the queue cpu.\n"
	if diff := cmp.Diff(want, got.stderr); got.code != 0 || diff != "" {
		t.Errorf("code %d (-want +got):\n%s", got.code, diff)
	}
}

// TestErrorsAreJSON has each kind of error with --json: it is one line of JSON on stderr, and stdout is empty.
func TestErrorsAreJSON(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args   []string
		code   int
		stderr string
	}{
		"FromTheFarm":     {[]string{"--json", "job", "get", "job_1"}, 1, `{"code":"not_found","message":"There is no job \"job_1\"."}`},
		"Two":             {[]string{"job", "cancel", "job_1", "job_2", "--json"}, 1, `{"code":"not_found","message":"cancel job_1: There is no job \"job_1\". cancel job_2: There is no job \"job_2\"."}`},
		"Usage":           {[]string{"--json", "job", "get"}, 2, `{"code":"usage","message":"the job's ID is missing. See \"sandfarm job get --help\""}`},
		"NoFile":          {[]string{"run", "--json", "/nowhere.py"}, 1, `{"code":"error","message":"there is no file /nowhere.py here"}`},
		"KernelsName":     {[]string{"cp", "sbx_1:no.txt", "."}, 1, `sandfarm: /workspace/no.txt does not exist.`},
		"TextWithoutJSON": {[]string{"job", "get", "job_1"}, 1, `sandfarm: There is no job "job_1".`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t)
			none := func(w http.ResponseWriter, r *http.Request) {
				f.answer(w, http.StatusNotFound, wire.Problem{Status: 404, Code: "not_found", Detail: `There is no job "` + r.URL.Path[len("/v1/jobs/"):] + `".`})
			}
			f.Routes["GET /v1/sandboxes/sbx_1/fs"] = f.gives(http.StatusNotFound, wire.Problem{Status: 404, Code: "not_found", Detail: "ENOENT: /workspace/no.txt does not exist."})
			for _, id := range []string{"job_1", "job_2"} {
				f.Routes["GET /v1/jobs/"+id], f.Routes["DELETE /v1/jobs/"+id] = none, none
			}
			got := f.sandfarm(t.Context(), "", test.args...)
			if diff := cmp.Diff(test.stderr, strings.TrimSuffix(got.stderr, "\n")); got.code != test.code || got.out != "" || diff != "" {
				t.Errorf("code %d, stdout %q, stderr (-want +got):\n%s", got.code, got.out, diff)
			}
		})
	}
}

// Values of secrets come from a variable or a file, for a new sandbox and for an old one, and are in no output.
func TestSecretsAreReadFromTheEnvironmentOrAFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	put(t, file, "value in a file\n")
	create := []string{"sandbox", "create", "--no-wait", "--network", "allowlist", "--secret"}
	update := []string{"sandbox", "secret", "sbx_1"}
	for _, test := range []struct {
		verb   []string
		secret string
		want   string
		wrong  [][]string
	}{
		{
			create, "TOKEN=api.example.com:Authorization: Bearer@" + file,
			`POST /v1/sandboxes {"network":"allowlist","secrets":{"TOKEN":{"host":"api.example.com","header":"Authorization: Bearer","value":"value in a file"}}}`,
			[][]string{{"TOKEN"}, {"TOKEN=api.example.com"}, {"=a:b"}, {"NOT_SET_HERE=api.example.com:X-Key"}, {"TOKEN=a:b@/does/not/exist"}},
		},
		{
			update, "TOKEN@" + file, `PATCH /v1/sandboxes/sbx_1 {"secrets":{"TOKEN":{"value":"value in a file"}}}`,
			[][]string{{"NOT_SET_HERE"}, {"@" + file}, {"TOKEN@/does/not/exist"}, {"TOKEN@" + file, "TOKEN@" + file}, {}},
		},
	} {
		f := newFarm(t)
		f.Routes["POST /v1/sandboxes"] = f.gives(http.StatusAccepted, wire.Created{Sandbox: wire.Sandbox{ID: "sbx_1"}, Job: wire.Job{ID: "job_1"}})
		f.Routes["PATCH /v1/sandboxes/sbx_1"] = f.gives(http.StatusOK, wire.Sandbox{ID: "sbx_1"})
		got := f.sandfarm(t.Context(), "", slices.Concat(test.verb, []string{test.secret})...)
		if got.code != 0 || strings.Contains(got.out+got.stderr, "value in") {
			t.Errorf("%+v", got)
		}
		testbed.Diff(t, "requests", []string{test.want}, f.asked())
		for _, wrong := range test.wrong {
			if got := f.sandfarm(t.Context(), "", slices.Concat(test.verb, wrong)...); got.code != 2 {
				t.Errorf("%q: %+v, want a usage error", wrong, got)
			}
		}
	}
}

func TestJobShowOfAnEndSaysTheState(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	for state, want := range map[string]string{"canceled": "error  Why.\n", "timed_out": "error  Why.\n", "failed": "error  conflict: Why.\n"} {
		f.Routes["GET /v1/jobs/job_1"] = f.gives(http.StatusOK, wire.Job{ID: "job_1", State: state, Error: &wire.JobError{Code: "conflict", Message: "Why."}})
		if got := f.sandfarm(t.Context(), "", "job", "show", "job_1"); !strings.Contains(got.out, want) {
			t.Errorf("job show printed:\n%s%s", got.out, got.stderr)
		}
	}
}

func TestJobShowSaysThatItWasTakenOver(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["GET /v1/jobs/job_1"] = f.gives(http.StatusOK, wire.Job{ID: "job_1", State: "completed", Attempt: 2})
	if got := f.sandfarm(t.Context(), "", "job", "show", "job_1"); !strings.Contains(got.out, "attempts  2: it was requeued, or another worker took it over\n") {
		t.Errorf("job show printed:\n%s%s", got.out, got.stderr)
	}
}

// TestJobShowSaysWhatWasAskedAndWhatCame: a job was shown without its code and outcome, and took longer than its timeout without a reason.
func TestJobShowSaysWhatWasAskedAndWhatCame(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	began := time.Now()
	ended, ok, failed := began.Add(12*time.Second), "ok", "failed"
	lines := func(n int) string { return strings.Repeat("x = 1\n", n) }
	execute := func(e wire.ExecuteResult) *wire.Result { return &wire.Result{Execute: &e} }
	for name, test := range map[string]struct {
		job  wire.Job
		want []string
	}{
		"OK":       {wire.Job{Outcome: &ok, Request: &wire.JobSpec{Code: lines(10)}, Result: execute(wire.ExecuteResult{})}, []string{"outcome    ok\n", "\n--- code\n" + lines(10)}},
		"Long":     {wire.Job{Request: &wire.JobSpec{Code: lines(11), Filename: "plot.py"}}, []string{"\n--- plot.py (the first 10 lines; all: sandfarm job get job_1 --json)\n" + lines(10)}},
		"Raised":   {wire.Job{Outcome: &failed, Result: execute(wire.ExecuteResult{ExitCode: 1, Error: &wire.CodeError{Name: "ValueError", Value: "no\nmore"}})}, []string{"outcome    ValueError: no\n", "exit code  1\n"}},
		"Exit":     {wire.Job{Outcome: &failed, Result: execute(wire.ExecuteResult{ExitCode: 3, Error: &wire.CodeError{Name: "SystemExit", Value: "3"}})}, []string{"outcome    exit 3\n"}},
		"Command":  {wire.Job{Request: &wire.JobSpec{Commands: []string{"ls", "id"}}}, []string{"\n--- command\nls\nid\n"}},
		"Packages": {wire.Job{Request: &wire.JobSpec{Packages: []string{"numpy", "pandas"}}}, []string{"\n--- packages\nnumpy\npandas\n"}},
		"Timings":  {wire.Job{Timings: wire.Timings{QueueMS: 250, RunMS: 10_400}}, []string{"waited  250ms\ntook    12s, of that 10s in the sandbox\n"}},
	} {
		test.job.ID, test.job.State, test.job.StartedAt, test.job.FinishedAt = "job_1", "completed", &began, &ended
		f.Routes["GET /v1/jobs/job_1"] = f.gives(http.StatusOK, test.job)
		got := f.sandfarm(t.Context(), "", "job", "get", "job_1")
		for _, want := range test.want {
			if !strings.Contains(got.out, want) {
				t.Errorf("%s: job get printed\n%s%s, want %q", name, got.out, got.stderr, want)
			}
		}
		if strings.Contains(got.out, lines(11)) {
			t.Errorf("%s: job get printed all of the code", name)
		}
	}
}

// TestVerbsSayThatTheyTryAgain: create was silent for six seconds before it said that the quota of sandboxes is used up.
func TestVerbsSayThatTheyTryAgain(t *testing.T) {
	t.Parallel()
	for want, problem := range map[string]wire.Problem{
		"sandfarm: the quota max_sandboxes of your tenant is used up; trying again in 1s\n": {Status: 429, Code: "exhausted", Detail: "No.", Quota: &wire.Quota{Name: "max_sandboxes"}},
		"sandfarm: Redis does not answer; trying again in 1s\n":                             {Status: 503, Code: "unavailable", Detail: "Redis does not answer."},
	} {
		f := newFarm(t)
		refused := false
		f.Routes["POST /v1/sandboxes"] = func(w http.ResponseWriter, _ *http.Request) {
			if !refused {
				refused = true
				w.Header().Set("Retry-After", "1")
				f.answer(w, problem.Status, problem)
				return
			}
			f.answer(w, http.StatusCreated, wire.Created{Sandbox: wire.Sandbox{ID: "sbx_1", State: "ready"}, Job: wire.Job{ID: "job_1", State: "completed"}})
		}
		got := f.sandfarm(t.Context(), "", "sandbox", "create")
		testbed.Diff(t, "create", outputs{0, "sbx_1\n", want}, got, cmp.AllowUnexported(outputs{}))
	}
}

// Without hosts a sandbox would lose all of them by a slip.
func TestAllowNeedsHostsOrNone(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	var sent string
	f.Routes["PATCH /v1/sandboxes/sbx_1"] = func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sent = strings.TrimSpace(string(body))
		f.gives(200, wire.Sandbox{ID: "sbx_1"})(w, r)
	}
	for args, want := range map[string]string{
		"": "", "a.example.com --none": "", "--none": `{"allow_hosts":[]}`, "a.example.com GET,HEAD": `{"allow_hosts":["a.example.com","GET,HEAD"]}`,
	} {
		sent = ""
		got := f.sandfarm(t.Context(), "", append([]string{"sandbox", "allow", "sbx_1"}, strings.Fields(args)...)...)
		if sent != want || (got.code == 2) != (want == "") {
			t.Errorf("%q: %+v, sent %s", args, got, sent)
		}
	}
}

// TestEgressOfANetworkWithoutALogSaysSo: it printed nothing, as if nothing had been connected to.
func TestEgressOfANetworkWithoutALogSaysSo(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	entries := []wire.EgressEntry{}
	f.Routes["GET /v1/sandboxes/{id}/egress"] = func(w http.ResponseWriter, r *http.Request) {
		f.answer(w, http.StatusOK, wire.List[wire.EgressEntry]{Items: entries})
	}
	for network, want := range map[string]string{"packages": "note: sbx_1 has the network packages; only the network allowlist has a log\n", "allowlist": ""} {
		f.Routes["GET /v1/sandboxes/sbx_1"] = f.gives(http.StatusOK, wire.Sandbox{ID: "sbx_1", Network: network})
		if got := f.sandfarm(t.Context(), "", "sandbox", "egress", "sbx_1"); got != (outputs{0, "", want}) {
			t.Errorf("%s: %+v, want %q", network, got, want)
		}
	}
}
