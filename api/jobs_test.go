package api_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestWaitDelaysTheAnswer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.sandbox()
	run := "/v1/sandboxes/" + box + "/execute"
	done := get[wire.Job](b, http.StatusOK, "POST", run+"?wait=20", `{"code":"print hi"}`)
	if done.State != "completed" || done.Result.Execute.Stdout != "hi\n" || done.FinishedAt == nil || done.Attempt != 1 {
		t.Fatalf("job %+v", done)
	}
	answer, _ := b.do("POST", run, `{"code":"print hi"}`, "Prefer", "respond-async, wait=20")
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Preference-Applied") != "wait=20" {
		t.Fatalf("Prefer: status %d, applied %q", answer.StatusCode, answer.Header.Get("Preference-Applied"))
	}
	answer, _ = b.do("POST", run, `{"code":"print hi"}`)
	if answer.StatusCode != http.StatusAccepted || !strings.HasPrefix(answer.Header.Get("Location"), "/v1/jobs/job_") {
		t.Fatalf("no wait: status %d, location %q", answer.StatusCode, answer.Header.Get("Location"))
	}
	// A wait that is too short returns the running job; a longer wait returns as soon as the job ends.
	start := time.Now()
	running := get[wire.Job](b, http.StatusAccepted, "POST", run+"?wait=0.3", `{"code":"block"}`)
	if took := time.Since(start); took < 250*time.Millisecond || running.Result != nil {
		t.Fatalf("after %s: %+v", took, running)
	}
	queued := get[wire.Job](b, http.StatusAccepted, "POST", run, `{"code":"print 2"}`)
	if queued.State != "queued" || queued.Position != 1 {
		t.Fatalf("behind it: state %s, position %d", queued.State, queued.Position)
	}
	time.AfterFunc(50*time.Millisecond, func() { close(b.worker.gate) })
	start = time.Now()
	ended := get[wire.Job](b, http.StatusOK, "GET", "/v1/jobs/"+running.ID+"?wait=60", nil)
	if took := time.Since(start); ended.State != "completed" || took >= time.Minute { // the whole wait
		t.Fatalf("after %s: %s", took, ended.State)
	}
}

func TestWaitMustBeANumber(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, wait := range []string{"abc", "orange", "-1", "1e9x", "", "NaN", "-Inf", "inf", "0x10"} {
		b.problem(farm.CodeInvalid, http.StatusBadRequest, "POST", "/v1/sandboxes?wait="+wait, "{}")
	}
	for _, wait := range []string{"0", "61", "1e9", "1e999", "0.001"} {
		if answer, content := b.do("POST", "/v1/sandboxes?wait="+wait, "{}"); answer.StatusCode > 202 {
			t.Errorf("wait=%s: %s", wait, content)
		}
	}
	b.problem(farm.CodeInvalid, http.StatusBadRequest, "POST", "/v1/sandboxes", "{}", "Prefer", "wait=soon")
}

func TestJobInJSON(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.sandbox()
	job := get[map[string]any](b, http.StatusOK, "POST", "/v1/sandboxes/"+box+"/execute?wait=20", `{"code":"make plot.png"}`)
	result := job["result"].(map[string]any)
	for _, field := range []string{"results", "installed", "notes"} {
		if list, ok := result[field].([]any); !ok || len(list) != 0 {
			t.Errorf("%s is %v, not []", field, result[field])
		}
	}
	artifact := result["artifacts"].([]any)[0].(map[string]any)
	if artifact["url"] != "http://s3.test/artifacts/plot.png?name=plot.png" || artifact["name"] != "plot.png" || artifact["key"] != nil || artifact["tenant"] != nil {
		t.Errorf("artifact %v", artifact)
	}
	if value, there := result["error"]; !there || value != nil {
		t.Errorf("error must be null, is %v", value)
	}
	for _, field := range []string{"created_at", "started_at", "finished_at"} {
		if text, _ := job[field].(string); !strings.HasSuffix(text, "Z") {
			t.Errorf("%s is %v", field, job[field])
		}
	}
	want := map[string]any{"self": "/v1/jobs/" + job["id"].(string), "events": "/v1/jobs/" + job["id"].(string) + "/events", "cancel": "/v1/jobs/" + job["id"].(string), "request": "/v1/jobs/" + job["id"].(string) + "/request"}
	testbed.Diff(t, "", want, job["links"])
	answer, _ := b.do("GET", "/v1/artifacts/"+artifact["id"].(string), nil)
	if answer.StatusCode != http.StatusFound || answer.Header.Get("Location") != artifact["url"] {
		t.Errorf("artifact: %d %s", answer.StatusCode, answer.Header.Get("Location"))
	}
}

func TestIdempotency(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.sandbox()
	run := "/v1/sandboxes/" + box + "/execute"
	const body = `{"code":"print once"}`
	first := get[wire.Job](b, http.StatusOK, "POST", run+"?wait=20", body, "Idempotency-Key", "k1")
	again := get[wire.Job](b, http.StatusOK, "POST", run+"?wait=5", body, "Idempotency-Key", "k1")
	if first.ID != again.ID || again.Result.Execute.Stdout != "once\n" {
		t.Fatalf("%s then %s", first.ID, again.ID)
	}
	b.problem(farm.CodeConflict, http.StatusConflict, "POST", run, `{"code":"print twice"}`, "Idempotency-Key", "k1")
	b.problem(farm.CodeConflict, http.StatusConflict, "POST", "/v1/run", body, "Idempotency-Key", "k1")
	if other := get[wire.Job](b, http.StatusOK, "POST", run+"?wait=20", body, "Idempotency-Key", "k2"); other.ID == first.ID {
		t.Fatal("another key must give another job")
	}
	made := get[wire.Created](b, http.StatusAccepted, "POST", "/v1/sandboxes", "{}", "Idempotency-Key", "c1")
	same := get[wire.Created](b, http.StatusAccepted, "POST", "/v1/sandboxes", "{}", "Idempotency-Key", "c1")
	if made.Sandbox.ID != same.Sandbox.ID || made.Job.ID != same.Job.ID {
		t.Fatal("the same key must give the same sandbox")
	}
	for _, bad := range []string{"", "with space", "tab\t.", "ünï", strings.Repeat("k", 256)} {
		p := b.problemOf("POST", run, body, "Idempotency-Key", bad)
		if p.Code != "invalid" {
			t.Errorf("key %q: %+v", bad, p)
		}
	}
	if answer, content := b.do("POST", run, body, "Idempotency-Key", strings.Repeat("k", 255)); answer.StatusCode != http.StatusAccepted {
		t.Errorf("255 characters: %s", content)
	}
}

// problemOf returns the problem of a request with any status.
func (b *bundle) problemOf(method, target string, body any, headers ...string) wire.Problem {
	b.t.Helper()
	answer, _ := b.do(method, target, body, headers...)
	return get[wire.Problem](b, answer.StatusCode, method, target, body, headers...)
}

func TestIdempotencyUnderRace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var group sync.WaitGroup
	ids := make([]string, 20)
	for i := range ids {
		group.Go(func() {
			ids[i] = get[wire.Created](b, http.StatusCreated, "POST", "/v1/sandboxes?wait=20", "{}", "Idempotency-Key", "race").Sandbox.ID
		})
	}
	group.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("several sandboxes: %v", ids)
		}
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.sandbox()
	run := "/v1/sandboxes/" + box + "/execute"
	running := get[wire.Job](b, http.StatusAccepted, "POST", run, `{"code":"block"}`)
	queued := get[wire.Job](b, http.StatusAccepted, "POST", run, `{"code":"print never"}`)
	if job := get[wire.Job](b, http.StatusOK, "DELETE", "/v1/jobs/"+queued.ID, nil); job.State != "canceled" {
		t.Fatalf("queued job is %s", job.State)
	} else if job.Error == nil || job.Error.Code != "conflict" || !strings.Contains(job.Error.Message, "before it began") {
		t.Errorf("a canceled job says %+v", job.Error)
	}
	close(b.worker.gate)
	done := get[wire.Job](b, http.StatusOK, "GET", "/v1/jobs/"+running.ID+"?wait=20", nil)
	if job := get[wire.Job](b, http.StatusOK, "DELETE", "/v1/jobs/"+done.ID, nil); job.State != "completed" {
		t.Fatalf("finished job became %s", job.State)
	}
}

// A job that did not complete says why, also where nothing failed.
func TestJobsSayWhyTheyEnded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := "/v1/sandboxes/" + b.sandbox() + "/execute?wait=20"
	for _, c := range []struct {
		code    string
		timeout int
		want    string
	}{
		{"print 1", 1, ""},
		{"end timed_out", 1, "The job was stopped after its timeout of 1 second; output"},
		{"end timed_out", 2, "The job was stopped after its timeout of 2 seconds; output"},
		{"end canceled", 1, "The job was canceled; output"},
	} {
		job := get[wire.Job](b, http.StatusOK, "POST", run, map[string]any{"code": c.code, "timeout_seconds": c.timeout})
		if (job.Error != nil) != (c.want != "") || job.Error != nil && !strings.HasPrefix(job.Error.Message, c.want) {
			t.Errorf("%s: state %s, error %+v, want %q", c.code, job.State, job.Error, c.want)
		}
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.sandbox()
	path := "/v1/sandboxes/" + box
	waiting := get[wire.Job](b, http.StatusAccepted, "POST", path+"/execute", `{"code":"block"}`)
	job := get[wire.Job](b, http.StatusOK, "DELETE", path+"?wait=20", nil)
	if job.Kind != "close" || job.State != "completed" {
		t.Fatalf("close job %+v", job)
	}
	close(b.worker.gate)
	if again := get[wire.Job](b, http.StatusOK, "DELETE", path+"?wait=20", nil); again.ID != job.ID {
		t.Fatal("closing again must answer the first close")
	}
	if got := get[wire.Sandbox](b, http.StatusOK, "GET", path, nil); got.State != "closed" || got.ClosedAt == nil {
		t.Fatalf("sandbox %+v", got)
	}
	if got := get[wire.Job](b, http.StatusOK, "GET", "/v1/jobs/"+waiting.ID, nil); got.State != "canceled" {
		t.Fatalf("job of a closed sandbox is %s", got.State)
	}
	b.problem(farm.CodeConflict, http.StatusConflict, "POST", path+"/execute", `{"code":"1"}`)
	b.problem(farm.CodeConflict, http.StatusConflict, "PUT", path+"/files/a.txt", "x")
	b.problem(farm.CodeConflict, http.StatusConflict, "PATCH", path, `{"name":"x"}`)
}

func TestBatch(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *api.Config, _ *api.Deps) { c.Limits = farm.DefaultLimits(); c.Limits.MaxBatch = 10 })
	box := b.sandbox()
	entries := []string{
		`{"kind":"execute","sandbox_id":"` + box + `","code":"print one"}`,
		`{"kind":"execute","sandbox_id":"` + box + `","code":5}`,
		`{"kind":"execute","sandbox_id":"sbx_nobody","code":"1"}`,
		`{"kind":"create","ttl_seconds":60}`,
		`{"kind":"nap"}`,
		`{"sandbox_id":"x"}`,
		`7`,
		`{"kind":"execute","sandbox_id":"` + box + `","code":"1","cod":"2"}`,
		`{"kind":"command","sandbox_id":"` + box + `","command":"true"}`,
		`{"kind":"close"}`,
	}
	body := `{"jobs":[` + strings.Join(entries, ",") + `]}`
	got := get[wire.BatchResult](b, http.StatusMultiStatus, "POST", "/v1/jobs/batch", body, "Idempotency-Key", "b1")
	wanted := []string{"", "invalid", "not_found", "", "invalid", "invalid", "invalid", "invalid", "", "invalid"}
	for i, want := range wanted {
		out := got.Jobs[i]
		switch {
		case want == "" && (out.Job == nil || out.Error != nil):
			t.Errorf("entry %d: %+v", i, out.Error)
		case want != "" && (out.Error == nil || out.Error.Code != want || out.Job != nil):
			t.Errorf("entry %d: %+v", i, out)
		}
	}
	if p := got.Jobs[9].Error; p.Status != http.StatusBadRequest || len(p.Errors) != 1 || p.Errors[0].Pointer != "/jobs/9/sandbox_id" {
		t.Errorf("a close without its sandbox: %+v", p)
	}
	if got.Jobs[3].Sandbox == nil {
		t.Error("a create must show its sandbox")
	}
	again := get[wire.BatchResult](b, http.StatusMultiStatus, "POST", "/v1/jobs/batch", body, "Idempotency-Key", "b1")
	if again.Jobs[0].Job.ID != got.Jobs[0].Job.ID || again.Jobs[3].Sandbox.ID != got.Jobs[3].Sandbox.ID {
		t.Error("the same key and batch must give the same jobs")
	}
	for _, bad := range []string{`{}`, `{"jobs":[]}`, `{"jobs":"x"}`, `{"jobs":{}}`, `{"job":[]}`, `{"jobs":[` + strings.Repeat("{},", 10) + `{}]}`} {
		if p := b.problemOf("POST", "/v1/jobs/batch", bad); p.Code != "invalid" {
			t.Errorf("%s: %+v", bad, p)
		}
	}
}

func TestBatchWaitsForItsJobs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.sandbox()
	print1 := `{"kind":"execute","sandbox_id":"` + box + `","code":"print one"}`
	create := `{"kind":"create"}`
	states := func(query string, headers []string, entries ...string) []string {
		t.Helper()
		got := get[wire.BatchResult](b, http.StatusMultiStatus, "POST", "/v1/jobs/batch"+query, `{"jobs":[`+strings.Join(entries, ",")+`]}`, headers...)
		out := make([]string, len(got.Jobs))
		for i, one := range got.Jobs {
			switch {
			case one.Error != nil:
				out[i] = one.Error.Code
			case one.Sandbox != nil:
				out[i] = one.Job.State + " " + one.Sandbox.State
			default:
				out[i] = one.Job.State
			}
		}
		return out
	}
	testbed.Diff(t, "states after the wait", []string{"completed", "completed ready", "invalid", "completed"}, states("?wait=30", nil, print1, create, `{"kind":"nap"}`, print1))
	testbed.Diff(t, "states after Prefer", []string{"completed"}, states("", []string{"Prefer", "wait=30"}, print1))
	// After the wait each job is shown in its current state: a longer job is running, the others have ended. The wait ends
	// when the server stops, after the create has ended.
	go func() {
		for len(get[wire.List[wire.Job]](b, http.StatusOK, "GET", "/v1/jobs?kind=create&state=completed", nil).Items) < 3 {
			time.Sleep(10 * time.Millisecond)
		}
		b.server.Stop()
	}()
	block := `{"kind":"execute","sandbox_id":"` + box + `","code":"block"}`
	testbed.Diff(t, "states at the end of the wait", []string{"running", "completed ready", "queued"}, states("?wait=60", nil, block, create, print1))
	close(b.worker.gate)
}

func TestListsArePaged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	made := map[string]bool{}
	for i := range 5 {
		box := get[wire.Created](b, http.StatusCreated, "POST", "/v1/sandboxes?wait=20", fmt.Sprintf(`{"labels":{"n":"%d","all":"a=b"}}`, i%2))
		made[box.Sandbox.ID] = true
	}
	seen, cursor, pages := map[string]bool{}, "", 0
	for {
		list := get[wire.List[wire.Sandbox]](b, http.StatusOK, "GET", "/v1/sandboxes?limit=2&label=all=a%3Db&cursor="+cursor, nil)
		for _, box := range list.Items {
			seen[box.ID] = true
		}
		if pages++; list.NextCursor == "" || pages > 10 {
			break
		}
		cursor = string(list.NextCursor)
	}
	if diff := cmp.Diff(made, seen); diff != "" {
		t.Fatal(diff)
	}
	odd := get[wire.List[wire.Sandbox]](b, http.StatusOK, "GET", "/v1/sandboxes?label=n=1&label=all=a%3Db&state=ready,busy", nil)
	if len(odd.Items) != 2 {
		t.Fatalf("%d sandboxes have n=1", len(odd.Items))
	}
	for _, query := range []string{"limit=abc", "limit=-1", "limit=0", "limit=201", "limit=1.5", "cursor=!!", "cursor=%00", "state=sleeping", "label=x", "label==x"} {
		if p := b.problemOf("GET", "/v1/sandboxes?"+query, nil); p.Code != "invalid" {
			t.Errorf("%s: %+v", query, p)
		}
	}
	for _, target := range []string{"/v1/jobs?state=open", "/v1/jobs?kind=nap", "/v1/jobs?outcome=bad", "/v1/jobs?limit=x", "/v1/artifacts?cursor=%00", "/v1/artifacts?limit=0"} {
		if p := b.problemOf("GET", target, nil); p.Code != "invalid" {
			t.Errorf("%s: %+v", target, p)
		}
	}
	job := get[wire.Job](b, http.StatusOK, "POST", "/v1/sandboxes/"+odd.Items[0].ID+"/execute?wait=20", `{"code":"print 1"}`)
	if job.Outcome == nil || *job.Outcome != "ok" {
		t.Errorf("the outcome is %v", job.Outcome)
	}
	for query, want := range map[string]int{
		"": 1, "&kind=execute": 1, "&kind=command": 0, "&state=completed": 1, "&state=failed": 0, "&kind=execute&state=completed": 1, "&kind=create&state=completed": 0,
		"&outcome=ok": 1, "&outcome=failed": 0,
	} {
		if list := get[wire.List[wire.Job]](b, http.StatusOK, "GET", "/v1/jobs?job_id="+job.ID+query, nil); len(list.Items) != want {
			t.Errorf("job_id%s gives %d jobs, want %d", query, len(list.Items), want)
		}
	}
	if answer, _ := b.do("GET", "/v1/sandboxes?limit=200", nil); answer.StatusCode != http.StatusOK {
		t.Error("limit=200 is allowed")
	}
}

func TestStopEndsWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.sandbox()
	b.server.Stop() // before Start: waits end, nothing hangs
	start := time.Now()
	get[wire.Job](b, http.StatusAccepted, "POST", "/v1/sandboxes/"+box+"/execute?wait=60", `{"code":"block"}`)
	if took := time.Since(start); took >= time.Minute { // the whole wait
		t.Fatalf("a stopped server held the answer for %s", took)
	}
	close(b.worker.gate)
	b.server.Stop()
}

func TestListsAreFiltered(t *testing.T) {
	t.Parallel()
	b := setup(t)
	named := get[wire.Created](b, http.StatusCreated, "POST", "/v1/sandboxes?wait=20", `{"name":"mine"}`)
	other := get[wire.Created](b, http.StatusCreated, "POST", "/v1/sandboxes?wait=20", `{"name":"mine too"}`)
	made := get[wire.Job](b, http.StatusOK, "POST", "/v1/sandboxes/"+named.Sandbox.ID+"/execute?wait=20", `{"code":"make a.txt"}`)
	get[wire.Job](b, http.StatusAccepted, "POST", "/v1/sandboxes/"+named.Sandbox.ID+"/execute", `{"code":"block"}`)
	canceled := get[wire.Job](b, http.StatusAccepted, "POST", "/v1/sandboxes/"+named.Sandbox.ID+"/execute", `{"code":"print 1"}`)
	get[wire.Job](b, http.StatusOK, "DELETE", "/v1/jobs/"+canceled.ID, nil)
	at := func(t time.Time) string { return url.QueryEscape(t.Format(time.RFC3339Nano)) }
	for target, want := range map[string]int{
		"/v1/sandboxes?name=mine":                                                 1,
		"/v1/sandboxes?name=min":                                                  0,
		"/v1/sandboxes?name=mine%20too&state=ready":                               1,
		"/v1/sandboxes?created_after=" + at(named.Sandbox.CreatedAt):              1,
		"/v1/sandboxes?created_before=" + at(other.Sandbox.CreatedAt):             1,
		"/v1/sandboxes?created_after=2001-01-01T00:00:00%2B01:00":                 2,
		"/v1/jobs?state=completed,canceled&kind=execute":                          2,
		"/v1/jobs?state=completed&state=canceled&kind=execute&kind=create":        4,
		"/v1/jobs?kind=create,execute":                                            5,
		"/v1/jobs?created_after=" + at(made.CreatedAt):                            2,
		"/v1/jobs?created_before=" + at(made.CreatedAt):                           2,
		"/v1/jobs?state=failed,lost":                                              0,
		"/v1/artifacts?name=a.txt":                                                1,
		"/v1/artifacts?state=failed,lost":                                         0,
		"/v1/artifacts?state=completed,failed":                                    1,
		"/v1/artifacts?name=b.txt":                                                0,
		"/v1/artifacts?created_before=2001-01-01T00:00:00Z":                       0,
		"/v1/artifacts?created_after=2001-01-01T00:00:00Z&job_id=" + made.ID:      1,
		"/v1/jobs?job_id=" + made.ID + "&created_before=" + at(made.CreatedAt):    0,
		"/v1/jobs?job_id=" + made.ID + "&state=canceled,completed&kind=execute":   1,
		"/v1/jobs?sandbox_id=" + other.Sandbox.ID + "&state=completed&state=lost": 1,
	} {
		if list := get[wire.List[struct{ ID string }]](b, http.StatusOK, "GET", target, nil); len(list.Items) != want {
			t.Errorf("%s gives %d entries, want %d", target, len(list.Items), want)
		}
	}
	for _, target := range []string{
		"/v1/jobs?state=completed,nap", "/v1/jobs?kind=create,nap", "/v1/jobs?created_after=yesterday", "/v1/sandboxes?created_before=", "/v1/artifacts?created_after=2026-11-22",
		"/v1/jobs?sandboxid=" + named.Sandbox.ID, "/v1/sandboxes?states=ready", "/v1/artifacts?wait=1", "/v1/artifacts?state=nap", "/v1/jobs?cursor=abc", "/v1/sandboxes?cursor=1t",
	} {
		if p := b.problemOf("GET", target, nil); p.Code != string(farm.CodeInvalid) {
			t.Errorf("%s: %+v", target, p)
		}
	}
	close(b.worker.gate)
}
