package storetest

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// jobsPageWhileInserting pages through a list that grows: the jobs that existed at the start come once, in order.
func jobsPageWhileInserting(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	var want []string
	for range 25 {
		want = append(want, b.accept(t, Execute(box.ID)).Job.ID)
	}
	b.accept(t, Read(box.ID)) // hidden: not in the list
	slices.Reverse(want)
	for name, f := range map[string]store.JobFilter{"all": {Kinds: []farm.JobKind{farm.KindExecute}}, "of sandbox": {SandboxID: box.ID, Kinds: []farm.JobKind{farm.KindExecute}}} {
		var got []string
		pages := 0
		for cursor := ""; ; pages++ {
			jobs, next, err := b.Jobs(t.Context(), Tenant, f, store.Page{Limit: 7, Cursor: cursor})
			if err != nil {
				t.Fatal(err)
			}
			if len(jobs) > 7 {
				t.Errorf("%s: a page of %d", name, len(jobs))
			}
			for _, job := range jobs {
				got = append(got, job.ID)
			}
			if cursor = next; next == "" {
				break
			}
			b.accept(t, Execute(box.ID))
		}
		if diff := cmp.Diff(want, got[len(got)-len(want):]); diff != "" {
			t.Errorf("%s in %d pages (-want +got):\n%s", name, pages, diff)
		}
		want = nil
		for cursor := ""; ; { // the second filter starts from the jobs that exist now
			jobs, next, err := b.Jobs(t.Context(), Tenant, f, store.Page{Limit: 200, Cursor: cursor})
			if err != nil {
				t.Fatal(err)
			}
			for _, job := range jobs {
				want = append(want, job.ID)
			}
			if cursor = next; next == "" {
				break
			}
		}
	}
}

func jobsFilter(t *testing.T, factory Factory) {
	b := setup(t, factory)
	one, two := b.box(t, farm.SandboxReady), b.box(t, farm.SandboxReady)
	queued := b.accept(t, Execute(one.ID)).Job
	done := b.accept(t, Execute(two.ID)).Job
	b.finish(t, b.claim(t, done.Ref(), "w").Job, farm.JobCompleted)
	raised := b.accept(t, Execute(two.ID)).Job
	if _, err := b.Finish(t.Context(), store.Finish{
		Ref: raised.Ref(), Attempt: b.claim(t, raised.Ref(), "w").Job.Attempt, State: farm.JobCompleted, Result: &farm.Result{Execute: &farm.ExecuteResult{ExitCode: 1}},
	}); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		filter store.JobFilter
		want   []string
	}{
		"state":             {store.JobFilter{States: []farm.JobState{farm.JobQueued}}, []string{queued.ID}},
		"state and kind":    {store.JobFilter{States: []farm.JobState{farm.JobCompleted}, Kinds: []farm.JobKind{farm.KindExecute}}, []string{raised.ID, done.ID}},
		"outcome":           {store.JobFilter{Outcome: farm.OutcomeFailed}, []string{raised.ID}},
		"other outcome":     {store.JobFilter{Outcome: farm.OutcomeOK, Kinds: []farm.JobKind{farm.KindExecute}}, []string{done.ID}},
		"sandbox":           {store.JobFilter{SandboxID: one.ID, Kinds: []farm.JobKind{farm.KindExecute}}, []string{queued.ID}},
		"sandbox and state": {store.JobFilter{SandboxID: one.ID, States: []farm.JobState{farm.JobFailed}}, nil},
		"unknown sandbox":   {store.JobFilter{SandboxID: "sbx_x"}, nil},
		"states and kinds": {
			store.JobFilter{States: []farm.JobState{farm.JobQueued, farm.JobCompleted}, Kinds: []farm.JobKind{farm.KindExecute, farm.KindInstall}},
			[]string{raised.ID, done.ID, queued.ID},
		},
		"job":                 {store.JobFilter{JobID: done.ID}, []string{done.ID}},
		"job, state and kind": {store.JobFilter{JobID: done.ID, States: []farm.JobState{farm.JobCompleted}, Kinds: []farm.JobKind{farm.KindExecute}}, []string{done.ID}},
		"job and outcome":     {store.JobFilter{JobID: raised.ID, Outcome: farm.OutcomeFailed}, []string{raised.ID}},
		"job of another end":  {store.JobFilter{JobID: done.ID, Outcome: farm.OutcomeFailed}, nil},
		"job of another kind": {store.JobFilter{JobID: done.ID, Kinds: []farm.JobKind{farm.KindInstall}}, nil},
		"job of another box":  {store.JobFilter{JobID: done.ID, SandboxID: one.ID}, nil},
		"job that is gone":    {store.JobFilter{JobID: "job_none"}, nil},
	} {
		jobs, next, err := b.Jobs(t.Context(), Tenant, test.filter, store.Page{})
		var got []string
		for _, job := range jobs {
			got = append(got, job.ID)
		}
		if diff := cmp.Diff(test.want, got); err != nil || next != "" || diff != "" {
			t.Errorf("%s (-want +got), next %q, %v:\n%s", name, next, err, diff)
		}
	}
	if jobs, _, err := b.Jobs(t.Context(), "other", store.JobFilter{}, store.Page{}); err != nil || len(jobs) != 0 {
		t.Errorf("another tenant sees %d jobs, %v", len(jobs), err)
	}
}

func sandboxesFilter(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ready, closed := b.box(t, farm.SandboxReady), b.box(t, farm.SandboxClosed)
	labels := map[string]string{"team": "b", "x": "y"}
	if _, err := b.UpdateSandbox(t.Context(), ready, store.SandboxPatch{Labels: &labels}); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		filter store.SandboxFilter
		want   []string
	}{
		"all":          {store.SandboxFilter{}, []string{closed.ID, ready.ID}},
		"states":       {store.SandboxFilter{States: []farm.SandboxState{farm.SandboxClosed, farm.SandboxLost}}, []string{closed.ID}},
		"label":        {store.SandboxFilter{Labels: map[string]string{"team": "b"}}, []string{ready.ID}},
		"other label":  {store.SandboxFilter{Labels: map[string]string{"team": "b", "x": "z"}}, nil},
		"no such name": {store.SandboxFilter{Labels: map[string]string{"absent": ""}}, nil},
	} {
		boxes, next, err := b.Sandboxes(t.Context(), Tenant, test.filter, store.Page{Limit: 10})
		var got []string
		for _, box := range boxes {
			got = append(got, box.ID)
		}
		if diff := cmp.Diff(test.want, got); err != nil || next != "" || diff != "" {
			t.Errorf("%s (-want +got), next %q, %v:\n%s", name, next, err, diff)
		}
	}
	open, err := b.OpenSandboxes(t.Context(), Tenant)
	if err != nil || len(open) != 1 || open[0].ID != ready.ID {
		t.Errorf("OpenSandboxes = %v, %v", open, err)
	}
	for id, want := range map[string]bool{ready.ID: true, closed.ID: false, farm.NewID(farm.SandboxPrefix): false} {
		if ref, ok, err := b.OpenRef(t.Context(), id); err != nil || ok != want || ok && ref != ready {
			t.Errorf("OpenRef of %s: %+v, %v, %v", id, ref, ok, err)
		}
	}
	refs, err := b.OpenRefs(t.Context())
	if diff := cmp.Diff([]farm.Ref{ready}, refs); err != nil || diff != "" {
		t.Errorf("OpenRefs (-want +got), %v:\n%s", err, diff)
	}
}

func badCursor(t *testing.T, factory Factory) {
	b := setup(t, factory)
	for _, cursor := range []string{"!", "-1", "0", "1", "abc", "zzzzzzzzzzzzzzzzzzzz", "1 OR 1"} {
		page := store.Page{Cursor: cursor}
		_, _, err := b.Jobs(t.Context(), Tenant, store.JobFilter{}, page)
		wantCode(t, "jobs at "+cursor, err, farm.CodeInvalid)
		_, _, err = b.Sandboxes(t.Context(), Tenant, store.SandboxFilter{}, page)
		wantCode(t, "sandboxes at "+cursor, err, farm.CodeInvalid)
		_, _, err = b.Artifacts(t.Context(), Tenant, store.ArtifactFilter{}, page)
		wantCode(t, "artifacts at "+cursor, err, farm.CodeInvalid)
	}
}
