package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// large is more than a record keeps in Redis.
var large = strings.Repeat("x", 100_000)

// executeLarge is a job with much code, all of which it shows.
func executeLarge(sandbox string) store.Accept {
	a := Execute(sandbox)
	a.Request.Execute.Code = large
	a.Job.Redacted = a.Request
	return a
}

// largest is the length of the longest value in the keys of a record.
func (b *bundle) largest(t *testing.T, id string) int {
	t.Helper()
	keys, err := b.rdb.Keys(t.Context(), b.prefix+"*"+id+"*").Result()
	testbed.Require(t, err == nil && len(keys) != 0, "keys of %s: %v, %v", id, keys, err)
	longest := 0
	for _, key := range keys {
		switch b.rdb.Type(t.Context(), key).Val() {
		case "string":
			longest = max(longest, int(b.rdb.StrLen(t.Context(), key).Val()))
		case "hash":
			for _, value := range b.rdb.HGetAll(t.Context(), key).Val() {
				longest = max(longest, len(value))
			}
		default:
		}
	}
	return longest
}

// wantDocuments checks how many documents there are.
func (b *bundle) wantDocuments(t *testing.T, when string, want int) {
	t.Helper()
	keys := b.documents.Keys()
	testbed.Check(t, len(keys) == want, "%s there are the documents %v, want %d", when, keys, want)
}

// largeRecords follows a job with a large request and a large result from its acceptance until its documents are removed.
func largeRecords(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	a := executeLarge(box.ID)
	accepted := b.accept(t, a).Job
	for what, job := range map[string]*farm.Job{"accepted": accepted, "stored": b.job(t, accepted.Ref())} {
		testbed.Diff(t, fmt.Sprintf("%s job", what), a.Job.Redacted, job.Redacted)
	}
	b.wantDocuments(t, "after the acceptance", 2) // request and what the job shows of it
	n := b.largest(t, accepted.ID)
	testbed.Check(t, n <= store.InlineBytes, "Redis has a value of %d bytes", n)

	claim := b.claim(t, accepted.Ref(), "w")
	for range 2 {
		testbed.Must(t, b.LoadRequest(t.Context(), claim))
		testbed.Diff(t, "request", a.Request, claim.Request)
	}
	result := &farm.Result{Execute: &farm.ExecuteResult{Stdout: large, Stderr: "short"}}
	long := &farm.JobError{Code: farm.CodeInternal, Message: large}
	for range 2 { // the second one is fenced and leaves nothing behind
		_, _ = b.Finish(t.Context(), store.Finish{Ref: accepted.Ref(), Attempt: 1, State: farm.JobFailed, Result: result, Error: long})
		b.wantDocuments(t, "after the end", 2) // what the job shows, and its result
	}
	n = b.largest(t, accepted.ID)
	testbed.Check(t, n <= store.InlineBytes, "Redis has a value of %d bytes", n)
	listed, _, err := b.Jobs(t.Context(), Tenant, store.JobFilter{SandboxID: box.ID}, store.Page{Limit: 1})
	testbed.Require(t, err == nil && len(listed) == 1, "Jobs = %v, %v", listed, err)
	_, before := b.documents.Calls()
	shown, err := b.Shown(t.Context(), accepted.Ref())
	testbed.Must(t, err)
	if _, after := b.documents.Calls(); after != before+1 || shown.Result != nil {
		t.Errorf("what a job shows of its request takes %d documents, and its result %v", after-before, shown.Result)
	}
	testbed.Diff(t, "shown request", a.Job.Redacted, shown.Redacted)
	reloaded, err := b.Reload(t.Context(), accepted, nil)
	testbed.Must(t, err)
	canceled, _, err := b.Cancel(t.Context(), accepted.Ref(), nil) // a finished job stays unchanged
	testbed.Must(t, err)
	for what, job := range map[string]*farm.Job{"listed": listed[0], "read": b.job(t, accepted.Ref()), "reloaded": reloaded, "canceled": canceled} {
		if diff := cmp.Diff(result, job.Result); diff != "" || job.Redacted == nil || len(job.Error.Message) > 5000 {
			t.Errorf("%s job shows %d bytes of its error; result (-want +got):\n%s", what, len(job.Error.Message), diff)
		}
	}

	b.trim(t, store.Trimmed{})
	b.clock.forward(time.Duration(farm.DefaultLimits().RetentionSeconds)*time.Second + time.Hour - time.Second)
	b.trim(t, store.Trimmed{})
	b.clock.forward(2 * time.Second)
	b.trim(t, store.Trimmed{Documented: 1})
	b.wantDocuments(t, "after the retention", 0)
	if n := b.rdb.ZCard(t.Context(), b.prefix+"{acme}:docs").Val(); n != 0 {
		t.Errorf("the index of documents has %d entries", n)
	}
}

// shortRetention: the documents of a job that is kept for less than an hour go at twice that time.
func shortRetention(t *testing.T, factory Factory) {
	const kept = 15
	b := setup(t, factory, func(l *farm.Limits) { l.RetentionSeconds = kept })
	accepted := b.accept(t, executeLarge(b.box(t, farm.SandboxReady).ID)).Job
	b.claim(t, accepted.Ref(), "w")
	_, err := b.Finish(t.Context(), store.Finish{Ref: accepted.Ref(), Attempt: 1, State: farm.JobCompleted, Result: &farm.Result{}})
	testbed.Must(t, err)
	b.wantDocuments(t, "after the end", 1)
	b.clock.forward(2*kept*time.Second - time.Second)
	b.trim(t, store.Trimmed{})
	b.clock.forward(2 * time.Second)
	b.trim(t, store.Trimmed{Documented: 1})
	b.wantDocuments(t, "after twice the retention", 0)
}

// largeSandboxes: the values of variables are in the request only, and a large record is a document as long as the sandbox is readable.
func largeSandboxes(t *testing.T, factory Factory) {
	b := setup(t, factory)
	a := Create()
	a.Sandbox.Spec.Env = map[string]string{"TOKEN": large}
	b.accept(t, a)
	ref := a.Sandbox.Ref()
	b.wantDocuments(t, "with a large variable", 1) // the request
	testbed.Diff(t, "variables of the record", map[string]string{"TOKEN": ""}, b.sandbox(t, ref).Spec.Env)

	wide := Create()
	wide.Sandbox.Spec.AllowHosts = strings.SplitAfter(strings.Repeat("a.example.com,", 5000), ",")
	wide.Request = &farm.Request{}
	b.accept(t, wide)
	ref = wide.Sandbox.Ref()
	b.wantDocuments(t, "with many hosts", 2)
	claim := b.claim(t, wide.Job.Ref(), "w")
	moved, err := b.MoveSandbox(t.Context(), store.Move{Ref: ref, To: farm.SandboxStarting})
	testbed.Must(t, err)
	listed, _, err := b.Sandboxes(t.Context(), Tenant, store.SandboxFilter{}, store.Page{Limit: 1})
	testbed.Require(t, err == nil && len(listed) == 1, "Sandboxes = %v, %v", listed, err)
	for what, box := range map[string]*farm.Sandbox{"claimed": claim.Sandbox, "moved": moved, "listed": listed[0], "read": b.sandbox(t, ref)} {
		testbed.Diff(t, fmt.Sprintf("hosts of the %s sandbox", what), wide.Sandbox.Spec.AllowHosts, box.Spec.AllowHosts)
	}
	for _, id := range []string{ref.ID, wide.Job.ID, a.Sandbox.ID, a.Job.ID} {
		n := b.largest(t, id)
		testbed.Check(t, n <= store.InlineBytes, "Redis has a value of %d bytes for %s", n, id)
	}
	_, err = b.MoveSandbox(t.Context(), store.Move{Ref: ref, To: farm.SandboxFailed})
	testbed.Must(t, err)
	b.clock.forward(time.Duration(farm.DefaultLimits().ClosedSeconds)*time.Second + 2*time.Hour)
	b.trim(t, store.Trimmed{Documented: 1})
	b.wantDocuments(t, "after the sandbox was forgotten", 1) // the request of the other, which waits
}

func refusedJobsLeaveNoDocuments(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	_, err := b.Accept(t.Context(), executeLarge("sbx_none"))
	wantCode(t, "a job of no sandbox", err, farm.CodeNotFound)
	b.wantDocuments(t, "after a refusal", 0)

	first := executeLarge(box.ID)
	first.Idempotency = &store.Idempotency{Key: "k", Fingerprint: "f"}
	b.accept(t, first)
	again := executeLarge(box.ID)
	again.Idempotency = first.Idempotency
	out := b.accept(t, again)
	testbed.Check(t, out.Existing && out.Job.Redacted != nil, "the second call gave %+v", out)
	b.wantDocuments(t, "after a repeated call", 2)
	b.accept(t, first) // after a lost answer
	b.wantDocuments(t, "after a retry", 2)

	_, _, err = b.Cancel(t.Context(), first.Job.Ref(), nil)
	testbed.Must(t, err)
	b.wantDocuments(t, "after a cancel", 1)
}

// documentsAreUnavailable: a job whose request cannot be stored is not accepted, one whose result cannot be stored does not end, and one
// whose request cannot be read can be claimed.
func documentsAreUnavailable(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	down := farm.Errorf(farm.CodeUnavailable, "the object store does not answer")
	b.documents.Fail(down)
	refused := executeLarge(box.ID)
	_, err := b.Accept(t.Context(), refused)
	wantCode(t, "Accept", err, farm.CodeUnavailable)
	_, err = b.Job(t.Context(), refused.Job.Ref())
	wantCode(t, "the job", err, farm.CodeNotFound)

	b.documents.Fail(nil)
	job := b.accept(t, executeLarge(box.ID)).Job
	b.documents.Fail(down)
	claim := b.claim(t, job.Ref(), "w")
	wantCode(t, "LoadRequest", b.LoadRequest(t.Context(), claim), farm.CodeUnavailable)
	f := store.Finish{Ref: job.Ref(), Attempt: 1, State: farm.JobCompleted, Result: &farm.Result{Notes: []string{large}}}
	_, err = b.Finish(t.Context(), f)
	wantCode(t, "Finish", err, farm.CodeUnavailable)
	b.documents.Fail(nil)
	err = b.LoadRequest(t.Context(), claim)
	testbed.Check(t, err == nil && claim.Request.Execute.Code == large, "LoadRequest = %v", err)
	_, err = b.Finish(t.Context(), f)
	testbed.Check(t, err == nil, "Finish = %v", err)
}

// lostDocuments: a job without its documents can still be read and listed.
func lostDocuments(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	job := b.accept(t, executeLarge(box.ID)).Job
	claim := b.claim(t, job.Ref(), "w")
	testbed.Must(t, b.documents.Delete(t.Context(), b.documents.Keys()...))
	wantCode(t, "LoadRequest", b.LoadRequest(t.Context(), claim), farm.CodeInternal)
	_, err := b.Finish(t.Context(), store.Finish{Ref: job.Ref(), Attempt: 1, State: farm.JobCompleted, Result: &farm.Result{Notes: []string{large}}})
	testbed.Must(t, err)
	testbed.Must(t, b.documents.Delete(t.Context(), b.documents.Keys()...))
	got := b.job(t, job.Ref())
	testbed.Check(t, got.State == farm.JobCompleted && got.Result == nil, "job = %+v", got)
	jobs, _, err := b.Jobs(t.Context(), Tenant, store.JobFilter{SandboxID: box.ID}, store.Page{})
	testbed.Check(t, err == nil && len(jobs) == 2, "Jobs = %d, %v", len(jobs), err)
}

// lostDocumentOfSandbox: a sandbox without its document is left out of lists, and does not stop them; jobs in it are given without it, and it can end.
func lostDocumentOfSandbox(t *testing.T, factory Factory) {
	b := setup(t, factory)
	wide := Create()
	wide.Sandbox.Spec.AllowHosts = strings.SplitAfter(strings.Repeat("a.example.com,", 5000), ",")
	b.accept(t, wide)
	ref := wide.Sandbox.Ref()
	claim := b.claim(t, wide.Job.Ref(), "w")
	for _, to := range []farm.SandboxState{farm.SandboxStarting, farm.SandboxReady} {
		_, err := b.MoveSandbox(t.Context(), store.Move{Ref: ref, To: to, Node: "n1"})
		testbed.Must(t, err)
	}
	b.finish(t, claim.Job, farm.JobCompleted)
	box, other := b.sandbox(t, ref), b.box(t, farm.SandboxReady)
	testbed.Must(t, b.documents.Delete(t.Context(), b.documents.Keys()...))

	id := func(box *farm.Sandbox) string { return box.ID }
	known := func(when string, want ...string) {
		t.Helper()
		open, err := b.OpenOnNode(t.Context(), "n1")
		testbed.Must(t, err)
		listed, _, err := b.Sandboxes(t.Context(), Tenant, store.SandboxFilter{}, store.Page{Oldest: true})
		testbed.Must(t, err)
		testbed.Diff(t, "open sandboxes of the node "+when, slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(ids(open, id))))
		testbed.Diff(t, "sandboxes of the tenant "+when, want, ids(listed, id))
	}
	known("without the document", other.ID)
	_, err := b.Sandbox(t.Context(), ref)
	testbed.Check(t, errors.Is(err, store.ErrDocumentGone), "Sandbox = %v", err)
	wantCode(t, "Sandbox", err, farm.CodeInternal) // the record is there
	a := Execute(ref.ID)
	testbed.Check(t, b.accept(t, a).Sandbox == nil, "a job is accepted with the sandbox")
	lost := b.claim(t, a.Job.Ref(), "w")
	testbed.Check(t, lost.Sandbox == nil, "a job is given with the sandbox")
	b.finish(t, lost.Job, farm.JobFailed)

	testbed.Must(t, b.RestoreDocument(t.Context(), box))
	known("with a new document", ref.ID, other.ID)
	testbed.Diff(t, "restored", box.Spec, b.sandbox(t, ref).Spec)

	testbed.Must(t, b.documents.Delete(t.Context(), b.documents.Keys()...))
	shut := CloseJob(ref.ID)
	b.accept(t, shut)
	for to, want := range map[string]*farm.Sandbox{"accepted": b.sandbox(t, ref), "claimed": b.claim(t, shut.Job.Ref(), "w").Sandbox} {
		got := want.State == farm.SandboxClosing && want.Ref() == ref && want.Node == "n1" && want.ExpiresAt.Equal(box.ExpiresAt)
		testbed.Check(t, got, "%s: %+v", to, want)
	}
	ended, err := b.MoveSandbox(t.Context(), store.Move{Ref: ref, To: farm.SandboxClosed})
	testbed.Check(t, err == nil && ended.State == farm.SandboxClosed, "MoveSandbox = %+v, %v", ended, err)
}

// unreadableDocumentOfSandbox: while the object store does not answer, sandboxes with documents are left out of a node's open ones, with one error and
// after one try. Any other error with a document leaves out no more than its sandbox.
func unreadableDocumentOfSandbox(t *testing.T, factory Factory) {
	b := setup(t, factory)
	for range 2 {
		wide := Create()
		wide.Sandbox.Spec.AllowHosts = strings.SplitAfter(strings.Repeat("a.example.com,", 5000), ",")
		b.accept(t, wide)
		_, err := b.MoveSandbox(t.Context(), store.Move{Ref: wide.Sandbox.Ref(), To: farm.SandboxStarting, Node: "n1"})
		testbed.Must(t, err)
	}
	small := b.box(t, farm.SandboxReady)
	for code, tries := range map[farm.Code]int{farm.CodeUnavailable: 1, farm.CodeInternal: 2} {
		b.documents.Fail(farm.Errorf(code, "the object store fails"))
		_, before := b.documents.Calls()
		open, err := b.OpenOnNode(t.Context(), "n1")
		_, after := b.documents.Calls()
		testbed.Check(t, len(open) == 1 && open[0].ID == small.ID && farm.CodeOf(err) == code, "%s: OpenOnNode = %d, %v", code, len(open), err)
		testbed.Check(t, after-before == tries, "%s: %d tries to read a document, want %d", code, after-before, tries)
	}
	b.documents.Fail(nil)
	open, err := b.OpenOnNode(t.Context(), "n1")
	testbed.Check(t, len(open) == 3 && err == nil, "later: OpenOnNode = %d, %v", len(open), err)
}

// largePagesAreShort: a page of jobs with large results ends early, and the pages together have every job once.
func largePagesAreShort(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	const jobs = 7
	text := strings.Repeat("x", 400<<10)
	for range jobs {
		job := b.accept(t, Execute(box.ID)).Job
		b.claim(t, job.Ref(), "w")
		_, err := b.Finish(t.Context(), store.Finish{Ref: job.Ref(), Attempt: 1, State: farm.JobCompleted, Result: &farm.Result{Notes: []string{text}}})
		testbed.Must(t, err)
	}
	var pages []string
	seen := map[string]bool{}
	for p := (store.Page{Limit: 100}); ; {
		found, next, err := b.Jobs(t.Context(), Tenant, store.JobFilter{Kinds: []farm.JobKind{farm.KindExecute}}, p)
		testbed.Must(t, err)
		for _, job := range found {
			if seen[job.ID] = true; job.Result == nil || len(job.Result.Notes) != 1 {
				t.Errorf("job %s has no result", job.ID)
			}
		}
		pages = append(pages, fmt.Sprint(len(found)))
		if p.Cursor = next; next == "" {
			break
		}
	}
	got := strings.Join(pages, " ")
	testbed.Check(t, len(seen) == jobs && got == "3 3 1", "pages of %s jobs with %d of %d jobs, want 3 3 1", got, len(seen), jobs)
}

// pagesOfManyBytesAreShort: a page ends at a MiB of records that are in Redis, too, has not loaded many more, and is charged.
func pagesOfManyBytesAreShort(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	const jobs, size = 70, 30 << 10
	for range jobs {
		job := b.accept(t, Execute(box.ID)).Job
		b.claim(t, job.Ref(), "w")
		_, err := b.Finish(t.Context(), store.Finish{Ref: job.Ref(), Attempt: 1, State: farm.JobCompleted, Result: &farm.Result{Notes: []string{strings.Repeat("x", size)}}})
		testbed.Must(t, err)
	}
	b.wantDocuments(t, "after the jobs", 0)
	ctx, hold := budget.New(1<<30).With(t.Context(), Tenant, 0)
	defer hold.Release()
	seen, cursor := 0, ""
	for _, want := range []int{34, 34, 2} {
		found, next, err := b.Jobs(ctx, Tenant, store.JobFilter{Kinds: []farm.JobKind{farm.KindExecute}}, store.Page{Limit: 100, Cursor: cursor})
		testbed.Must(t, err)
		testbed.Check(t, len(found) == want, "a page has %d jobs, want %d", len(found), want)
		bytes := int64(len(found)-2) * size
		testbed.Check(t, hold.Bytes() >= 6*bytes, "a page of %d bytes is charged with %d", bytes, hold.Bytes())
		hold.Keep(0)
		seen += len(found)
		cursor = next
	}
	testbed.Check(t, seen == jobs && cursor == "", "there are %d of %d jobs, and then %q", seen, jobs, cursor)
}

// longRequestsAreStoredOnce: the worker and the callers read the long part of a request from one document. What callers may not see is
// stored beside it, and only until the job ends.
func longRequestsAreStoredOnce(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	const secret = "secret"
	for name, c := range map[string]struct {
		command   bool
		env       map[string]string
		documents int // while the job is unfinished: whole, shown, and the private part if it is long
	}{
		"Code":              {documents: 2},
		"CodeAndVariable":   {env: map[string]string{"A": secret}, documents: 2},
		"CodeAndLongSecret": {env: map[string]string{"A": secret + large}, documents: 3},
		"Commands":          {command: true, env: map[string]string{"A": secret}, documents: 2},
	} {
		t.Run(name, func(t *testing.T) {
			a := Execute(box.ID)
			whole := &farm.Request{Context: "c"}
			request := *whole
			hidden := map[string]string{}
			for key := range c.env {
				hidden[key] = ""
			}
			if c.command {
				a.Job.Kind = farm.KindCommand
				request.Command = &farm.CommandRequest{Commands: []string{"true", large}, Cwd: "d", Env: c.env}
				whole.Command = &farm.CommandRequest{Commands: []string{"true", large}, Cwd: "d", Env: hidden}
				a.Job.Redacted = &farm.Request{Command: &farm.CommandRequest{Commands: []string{"true", large[:9000]}}}
			} else {
				request.Execute = &farm.ExecuteRequest{Code: large, Language: "python", Env: c.env}
				whole.Execute = &farm.ExecuteRequest{Code: large, Language: "python", Env: hidden}
				a.Job.Redacted = &farm.Request{Execute: &farm.ExecuteRequest{Code: large[:9000]}}
			}
			a.Job.Truncated, a.Request, a.Whole = true, &request, whole
			ref := b.accept(t, a).Job.Ref()
			b.wantDocuments(t, "after the acceptance", c.documents)
			n := b.largest(t, ref.ID)
			testbed.Check(t, n <= store.InlineBytes, "Redis has a value of %d bytes", n)
			size := 0
			for _, text := range b.documents.All() {
				size += len(text)
			}
			limit := len(large) + len(c.env["A"]) + 10_000
			testbed.Check(t, size <= limit, "%d bytes are stored, want at most %d", size, limit)

			claim := b.claim(t, ref, "w")
			for range 2 {
				testbed.Must(t, b.LoadRequest(t.Context(), claim))
				testbed.Diff(t, "request of the claim", &request, claim.Request, cmp.Comparer(sameEnv))
				testbed.Check(t, claim.ForgetRequest(), "the request is not forgotten")
			}
			visible := func(when string) {
				t.Helper()
				got, err := b.WholeRequest(t.Context(), ref)
				testbed.Must(t, err)
				testbed.Diff(t, fmt.Sprintf("whole request %s", when), whole, got, cmp.Comparer(sameEnv))
			}
			visible("while the job runs")
			if _, err := b.Finish(t.Context(), store.Finish{Ref: ref, Attempt: 1, State: farm.JobCompleted}); err != nil {
				t.Fatal(err)
			}
			visible("after the end")
			b.wantDocuments(t, "after the end", 2)
			for key, text := range b.documents.All() {
				testbed.Check(t, !strings.Contains(string(text), secret), "the document %s has the value of a variable", key)
			}
			b.clock.forward(time.Duration(farm.DefaultLimits().RetentionSeconds)*time.Second + 2*time.Hour)
			b.trim(t, store.Trimmed{Documented: 1})
			b.wantDocuments(t, "after the retention", 0)
			_, err := b.WholeRequest(t.Context(), ref)
			wantCode(t, "WholeRequest", err, farm.CodeNotFound)
		})
	}
}

// sameEnv compares variables: none are an empty map or nil.
func sameEnv(a, b map[string]string) bool { return len(a) == 0 && len(b) == 0 || cmp.Equal(a, b) }
