package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// The result of a create used to leave out its packages, also those that failed.
func TestTheResultOfACreateReportsItsPackages(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{JobFunc: func(_ context.Context, id string, _ time.Duration) (wire.Job, error) {
		return wire.Job{ID: id, Kind: "create", SandboxID: "sbx_1", State: "completed", Result: &wire.Result{Install: &wire.InstallResult{
			Packages: []wire.InstalledOne{
				{Name: "six", Requested: "six", Status: "installed", Version: "1.17.0"},
				{Name: "nope", Requested: "nope>1", Status: "failed", Message: "There is no nope."},
			},
		}}}, nil
	}})
	r := b.call("get_job_result", map[string]any{"job_id": "job_1"})
	want := map[string]any{
		"job_id": "job_1", "sandbox_id": "sbx_1", "kind": "create", "state": "completed",
		"packages": []any{
			map[string]any{"name": "six", "requested": "six", "status": "installed", "version": "1.17.0", "message": ""},
			map[string]any{"name": "nope", "requested": "nope>1", "status": "failed", "version": "", "message": "There is no nope."},
		},
	}
	if diff := cmp.Diff(want, r.StructuredContent); diff != "" || !strings.Contains(textOf(r), "There is no nope.") || strings.Contains(textOf(r), "exit code") {
		t.Errorf("%s\n%s", diff, textOf(r))
	}
}

func TestTheResultOfACreateThatIsNotDone(t *testing.T) {
	t.Parallel()
	job := wire.Job{ID: "job_1", Kind: "create", SandboxID: "sbx_1", State: "running"}
	b := setup(t, &fakeFarm{JobFunc: func(context.Context, string, time.Duration) (wire.Job, error) { return job, nil }})
	if r := b.call("get_job_result", map[string]any{"job_id": "job_1"}); field(t, r, "state") != "running" || !strings.Contains(textOf(r), "get_job_result") {
		t.Error(textOf(r))
	}
	job.State, job.Error = "failed", &wire.JobError{Code: "unavailable", Message: "No worker came."}
	if r := b.call("get_job_result", map[string]any{"job_id": "job_1"}); !r.IsError || !strings.Contains(textOf(r), "No worker came.") {
		t.Error(textOf(r))
	}
	job.State, job.Error = "canceled", &wire.JobError{Code: "conflict", Message: "The job was canceled."}
	if r := b.call("get_job_result", map[string]any{"job_id": "job_1"}); field(t, r, "state") != "canceled" || field(t, r, "message") == nil {
		t.Error(textOf(r))
	}
}

// A model sees what a running job has printed, cut as the output of one that has ended, and after a clear only what followed.
func TestARunningJobShowsItsOutputSoFar(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 30<<10)
	b := setup(t, &fakeFarm{
		JobFunc: func(_ context.Context, id string, _ time.Duration) (wire.Job, error) {
			return wire.Job{ID: id, Kind: "execute", SandboxID: "sbx_1", State: "running"}, nil
		},
		EventsFunc: func(ctx context.Context, id string) iter.Seq2[wire.Event, error] {
			return func(yield func(wire.Event, error) bool) {
				say := func(name string, data any) {
					raw, _ := json.Marshal(data)
					yield(wire.Event{Name: name, Data: raw}, nil)
				}
				say("state", wire.StateData{State: "running"})
				say("stdout", wire.TextData{Text: "cleared\n"})
				if id != "job_long" {
					say("clear", wire.ClearData{})
					say("stdout", wire.TextData{Text: "step 1\n"})
					say("stderr", wire.TextData{Text: "careful\n"})
				} else {
					for range 10 {
						say("stdout", wire.TextData{Text: long})
					}
					say("stdout", wire.TextData{Text: "the end"})
				}
				<-ctx.Done() // as a job that goes on
				yield(wire.Event{}, ctx.Err())
			}
		},
	})
	r := b.call("get_job_result", map[string]any{"job_id": "job_1"})
	if field(t, r, "state") != "running" || field(t, r, "stdout") != "step 1\n" || field(t, r, "stderr") != "careful\n" ||
		!strings.HasSuffix(textOf(r), "\nstdout so far:\nstep 1\nstderr so far:\ncareful\n") {
		t.Errorf("%+v\n%s", r.StructuredContent, textOf(r))
	}
	r = b.call("get_job_result", map[string]any{"job_id": "job_long"})
	stdout, _ := field(t, r, "stdout").(string)
	left := fmt.Sprintf("[… %d bytes left out;", 10*len(long)+len("cleared\nthe end")-32<<10)
	if !strings.HasPrefix(stdout, "cleared\nxx") || !strings.HasSuffix(stdout, "xxthe end") || !strings.Contains(stdout, left) {
		t.Errorf("%d bytes: %.80q … %q, want %s", len(stdout), stdout, stdout[max(0, len(stdout)-80):], left)
	}
	if cut, _ := field(t, r, "truncated").(map[string]any); cut["stdout"] != true || cut["stderr"] != false {
		t.Errorf("truncated: %v", cut)
	}
}

func TestCancelJob(t *testing.T) {
	t.Parallel()
	final := farm.Conflictf("The job job_1 is completed and cannot be canceled.")
	for name, test := range map[string]struct {
		canceled string // state that the cancel returns; empty: a conflict
		then     string // state at the next read
		want     string
		text     string
		isError  bool
	}{
		"Queued":         {canceled: "canceled", want: "canceled", text: "Files that it wrote"},
		"Running":        {canceled: "running", then: "canceled", want: "canceled", text: "canceled"},
		"StillRunning":   {canceled: "running", then: "running", want: "running", text: "get_job_result"},
		"Ended":          {canceled: "completed", want: "completed", text: "ended already: completed"},
		"EndedRefused":   {then: "completed", want: "completed", text: "ended already: completed"},
		"CanceledBefore": {canceled: "canceled", want: "canceled", text: "Files that it wrote"},
		"CannotBeEnded":  {then: "running", text: "cannot be canceled", isError: true},
		"EndedMeanwhile": {canceled: "running", then: "completed", want: "completed", text: "ended already"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job := func(id, state string) wire.Job {
				return wire.Job{ID: id, Kind: "execute", SandboxID: "sbx_1", State: state}
			}
			b := setup(t, &fakeFarm{
				CancelFunc: func(_ context.Context, id string) (wire.Job, error) {
					if test.canceled == "" {
						return wire.Job{}, final
					}
					return job(id, test.canceled), nil
				},
				JobFunc: func(_ context.Context, id string, wait time.Duration) (wire.Job, error) {
					if wait != 3*time.Second {
						t.Errorf("waits for %s", wait)
					}
					return job(id, test.then), nil
				},
			})
			r := b.call("cancel_job", map[string]any{"job_id": "job_1", "wait_seconds": 3})
			if r.IsError != test.isError || !strings.Contains(textOf(r), test.text) {
				t.Fatal(textOf(r))
			}
			if want := map[string]any{"job_id": "job_1", "sandbox_id": "sbx_1", "kind": "execute", "state": test.want}; !test.isError {
				if diff := cmp.Diff(want, r.StructuredContent); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
	if r := setup(t, &fakeFarm{}).call("cancel_job", map[string]any{"job_id": "job_1"}); !r.IsError || !strings.Contains(textOf(r), "job_id") {
		t.Error(textOf(r))
	}
}

func TestRestartKernel(t *testing.T) {
	t.Parallel()
	state := "completed"
	b := setup(t, &fakeFarm{RestartFunc: func(_ context.Context, id, kernel string, wait time.Duration) (wire.Job, error) {
		if wait != 20*time.Second || kernel != "" && kernel != "plots" {
			return wire.Job{}, farm.Invalidf("request is %q, %s", kernel, wait)
		}
		return wire.Job{ID: "job_1", Kind: "restart", SandboxID: id, State: state}, nil
	}})
	want := map[string]any{"job_id": "job_1", "sandbox_id": "sbx_1", "kind": "restart", "state": "completed"}
	for _, args := range []map[string]any{{"sandbox_id": "sbx_1"}, {"sandbox_id": "sbx_1", "context": "plots"}} {
		r := b.call("restart_kernel", args)
		named := strings.Contains(textOf(r), `"plots"`)
		if diff := cmp.Diff(want, r.StructuredContent); diff != "" || named != (args["context"] != nil) || !strings.Contains(textOf(r), "variables are gone") {
			t.Errorf("%s\n%s", diff, textOf(r))
		}
	}
	state = "running"
	if r := b.call("restart_kernel", map[string]any{"sandbox_id": "sbx_1"}); field(t, r, "state") != "running" || !strings.Contains(textOf(r), "get_job_result") {
		t.Error(textOf(r))
	}
	state = "failed"
	if r := b.call("restart_kernel", map[string]any{"sandbox_id": "sbx_1"}); !r.IsError {
		t.Error(textOf(r))
	}
}

func TestAnUnknownContextSaysHowToRestartAll(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{RestartFunc: func(_ context.Context, id, _ string, _ time.Duration) (wire.Job, error) {
		return wire.Job{ID: "job_1", Kind: "restart", SandboxID: id, State: "failed", Error: &wire.JobError{Code: "not_found", Message: `The sandbox has no context "nope".`}}, nil
	}})
	r := b.call("restart_kernel", map[string]any{"sandbox_id": "sbx_1", "context": "nope"})
	if text := textOf(r); !r.IsError || !strings.Contains(text, "Leave context out to restart all") || strings.Contains(text, "create_sandbox") {
		t.Error(text)
	}
}
