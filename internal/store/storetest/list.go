package storetest

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
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
			testbed.Must(t, err)
			testbed.Check(t, len(jobs) <= 7, "%s: a page of %d", name, len(jobs))
			for _, job := range jobs {
				got = append(got, job.ID)
			}
			if cursor = next; next == "" {
				break
			}
			b.accept(t, Execute(box.ID))
		}
		testbed.Diff(t, fmt.Sprintf("%s in %d pages", name, pages), want, got[len(got)-len(want):])
		want = nil
		for cursor := ""; ; { // the second filter starts from the jobs that exist now
			jobs, next, err := b.Jobs(t.Context(), Tenant, f, store.Page{Limit: 200, Cursor: cursor})
			testbed.Must(t, err)
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
	_, err := b.Finish(t.Context(), store.Finish{
		Ref: raised.Ref(), Attempt: b.claim(t, raised.Ref(), "w").Job.Attempt, State: farm.JobCompleted, Result: &farm.Result{Execute: &farm.ExecuteResult{ExitCode: 1}},
	})
	testbed.Must(t, err)
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
		diff := cmp.Diff(test.want, got)
		testbed.Check(t, err == nil && next == "" && diff == "", "%s (-want +got), next %q, %v:\n%s", name, next, err, diff)
	}
	jobs, _, err := b.Jobs(t.Context(), "other", store.JobFilter{}, store.Page{})
	testbed.Check(t, err == nil && len(jobs) == 0, "another tenant sees %d jobs, %v", len(jobs), err)
}

func sandboxesFilter(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ready, closed := b.box(t, farm.SandboxReady), b.box(t, farm.SandboxClosed)
	labels := map[string]string{"team": "b", "x": "y"}
	_, err := b.UpdateSandbox(t.Context(), ready, store.SandboxPatch{Labels: &labels})
	testbed.Must(t, err)
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
		diff := cmp.Diff(test.want, got)
		testbed.Check(t, err == nil && next == "" && diff == "", "%s (-want +got), next %q, %v:\n%s", name, next, err, diff)
	}
	open, err := b.OpenSandboxes(t.Context(), Tenant)
	testbed.Check(t, err == nil && len(open) == 1 && open[0].ID == ready.ID, "OpenSandboxes = %v, %v", open, err)
	refs, err := b.OpenRefs(t.Context())
	diff := cmp.Diff([]farm.Ref{ready}, refs)
	testbed.Check(t, err == nil && diff == "", "OpenRefs (-want +got), %v:\n%s", err, diff)
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

// listsByTime filters jobs, sandboxes and artifacts by when they were created; both ends are exclusive.
func listsByTime(t *testing.T, factory Factory) {
	b := setup(t, factory)
	start := b.clock.Now()
	var jobs, boxes, artifacts [4]string
	for i := range jobs { // one of each, an hour apart
		a := Create()
		a.Sandbox.CreatedAt, a.Sandbox.Spec.Name = b.clock.Now(), fmt.Sprint("box", i%2)
		b.accept(t, a)
		jobs[i], boxes[i], artifacts[i] = a.Job.ID, a.Sandbox.ID, farm.ArtifactID(a.Job.ID, "f")
		testbed.Must(t, b.AddArtifacts(t.Context(), 0, []farm.Artifact{{
			ID: artifacts[i], Tenant: Tenant, SandboxID: a.Sandbox.ID, JobID: a.Job.ID, Name: fmt.Sprint("file", i%2),
			CreatedAt: b.clock.Now(), ExpiresAt: b.clock.Now().Add(24 * time.Hour),
		}}))
		b.clock.forward(time.Hour)
	}
	hour := func(n int) time.Time { return start.Add(time.Duration(n) * time.Hour) }
	for name, test := range map[string]struct {
		created store.TimeRange
		want    []int
	}{
		"open":          {store.TimeRange{}, []int{3, 2, 1, 0}},
		"after":         {store.TimeRange{After: hour(1)}, []int{3, 2}},
		"just before":   {store.TimeRange{After: hour(1).Add(-time.Microsecond)}, []int{3, 2, 1}},
		"before":        {store.TimeRange{Before: hour(1)}, []int{0}},
		"between":       {store.TimeRange{After: hour(0), Before: hour(3)}, []int{2, 1}},
		"empty":         {store.TimeRange{After: hour(1), Before: hour(1)}, nil},
		"in the future": {store.TimeRange{After: hour(9)}, nil},
	} {
		check := func(what string, all [4]string, got []string, next string, err error) {
			t.Helper()
			var want []string
			for _, i := range test.want {
				want = append(want, all[i])
			}
			diff := cmp.Diff(want, got)
			testbed.Check(t, diff == "" && next == "" && err == nil, "%s %s: next %q, %v (-want +got):\n%s", what, name, next, err, diff)
		}
		foundJobs, next, err := b.Jobs(t.Context(), Tenant, store.JobFilter{Created: test.created}, store.Page{})
		check("jobs", jobs, ids(foundJobs, func(j *farm.Job) string { return j.ID }), next, err)
		foundBoxes, next, err := b.Sandboxes(t.Context(), Tenant, store.SandboxFilter{Created: test.created}, store.Page{})
		check("sandboxes", boxes, ids(foundBoxes, func(s *farm.Sandbox) string { return s.ID }), next, err)
		foundArtifacts, next, err := b.Artifacts(t.Context(), Tenant, store.ArtifactFilter{Created: test.created}, store.Page{})
		check("artifacts", artifacts, ids(foundArtifacts, func(a *farm.Artifact) string { return a.ID }), next, err)
	}
	named, _, err := b.Sandboxes(t.Context(), Tenant, store.SandboxFilter{Name: "box1", Created: store.TimeRange{After: hour(1)}}, store.Page{})
	if got := ids(named, func(s *farm.Sandbox) string { return s.ID }); err != nil || len(got) != 1 || got[0] != boxes[3] {
		t.Errorf("sandboxes box1 after the first hour: %v, %v; want %s", got, err, boxes[3])
	}
	files, _, err := b.Artifacts(t.Context(), Tenant, store.ArtifactFilter{Name: "file0"}, store.Page{})
	got := ids(files, func(a *farm.Artifact) string { return a.ID })
	testbed.Check(t, err == nil && cmp.Equal(got, []string{artifacts[2], artifacts[0]}), "artifacts file0: %v, %v", got, err)
}

func ids[T any](items []*T, id func(*T) string) []string {
	var out []string
	for _, item := range items {
		out = append(out, id(item))
	}
	return out
}

// listsOfOpenOnesAreTheSame lists jobs and sandboxes by states that are not final, for which less is read: the items, their order and the cursors are those of
// the whole list.
func listsOfOpenOnesAreTheSame(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	for _, state := range []farm.SandboxState{farm.SandboxQueued, farm.SandboxStarting, farm.SandboxHibernated, farm.SandboxClosing, farm.SandboxClosed, farm.SandboxReady} {
		b.box(t, state)
	}
	run := Create() // it has ended, and its sandbox closes
	run.Job.Kind, run.Sandbox.OneShot = farm.KindRun, true
	b.accept(t, run)
	b.claim(t, run.Job.Ref(), "w")
	for _, state := range []farm.SandboxState{farm.SandboxStarting, farm.SandboxReady, farm.SandboxClosing} {
		b.move(t, store.Move{Ref: run.Sandbox.Ref(), To: state, Node: "n1"})
	}
	_, err := b.Finish(t.Context(), store.Finish{Ref: run.Job.Ref(), Attempt: 1, State: farm.JobCompleted})
	testbed.Must(t, err)
	for i := range 12 {
		ref := b.accept(t, Execute(box.ID)).Job.Ref()
		switch {
		case i == 0:
			b.claim(t, ref, "w")
		case i%3 == 0:
			_, _, err := b.Cancel(t.Context(), ref, nil)
			testbed.Must(t, err)
		}
		b.accept(t, Read(box.ID)) // hidden
	}
	b.box(t, farm.SandboxQueued)

	for _, sandbox := range []string{"", box.ID} {
		jobs := func(states ...farm.JobState) func(store.Page) ([]string, string) {
			return func(p store.Page) ([]string, string) {
				found, next, err := b.Jobs(t.Context(), Tenant, store.JobFilter{SandboxID: sandbox, States: states}, p)
				testbed.Must(t, err)
				return ids(found, func(j *farm.Job) string { return j.ID }), next
			}
		}
		for _, states := range [][]farm.JobState{{farm.JobQueued}, {farm.JobRunning}, {farm.JobQueued, farm.JobRunning}, {farm.JobQueued, farm.JobCanceled}, farm.JobStates()} {
			sameList(t, fmt.Sprintf("jobs of %q that are %v", sandbox, states), store.Page{}, jobs(), jobs(states...), func(id string) bool {
				return slices.Contains(states, b.job(t, farm.Ref{Tenant: Tenant, ID: id}).State)
			})
		}
	}
	boxes := func(states ...farm.SandboxState) func(store.Page) ([]string, string) {
		return func(p store.Page) ([]string, string) {
			found, next, err := b.Sandboxes(t.Context(), Tenant, store.SandboxFilter{States: states}, p)
			testbed.Must(t, err)
			return ids(found, func(box *farm.Sandbox) string { return box.ID }), next
		}
	}
	for _, states := range [][]farm.SandboxState{
		{farm.SandboxQueued},
		{farm.SandboxReady, farm.SandboxHibernated},
		{farm.SandboxQueued, farm.SandboxStarting, farm.SandboxReady, farm.SandboxBusy, farm.SandboxHibernated},
		{farm.SandboxClosing},
		{farm.SandboxReady, farm.SandboxClosing},
		{farm.SandboxReady, farm.SandboxClosed},
		farm.SandboxStates(),
	} {
		for _, oldest := range []bool{false, true} {
			sameList(t, fmt.Sprintf("sandboxes that are %v, oldest first %t", states, oldest), store.Page{Oldest: oldest}, boxes(), boxes(states...), func(id string) bool {
				return slices.Contains(states, b.sandbox(t, farm.Ref{Tenant: Tenant, ID: id}).State)
			})
		}
	}
}

// sameList pages through a list that is filtered, from its beginning and from each cursor of the whole list, and compares it with what is wanted of that.
func sameList(t *testing.T, what string, page store.Page, whole, filtered func(store.Page) ([]string, string), wanted func(id string) bool) {
	t.Helper()
	rest := func(list func(store.Page) ([]string, string), limit int, from string) []string {
		t.Helper()
		p := page
		all := []string{}
		p.Limit, p.Cursor = limit, from
		for {
			found, next := list(p)
			if all = append(all, found...); next == "" {
				return all
			}
			p.Cursor = next
		}
	}
	p := page
	p.Limit = 3
	some := 0
	for {
		want := slices.DeleteFunc(rest(whole, 200, p.Cursor), func(id string) bool { return !wanted(id) })
		testbed.Diff(t, fmt.Sprintf("%s, from %q", what, p.Cursor), want, rest(filtered, 2, p.Cursor))
		some += len(want)
		_, next := whole(p)
		if next == "" {
			break
		}
		p.Cursor = next
	}
	testbed.Check(t, some > 0, "%s: there are none", what)
}

// queuedCells lists the cells that wait, the newest first. No record is read as a whole, unless the release before wrote it, and none is held.
func queuedCells(t *testing.T, factory Factory) {
	rdb := factory(t)
	b := setup(t, func(*testing.T) redis.UniversalClient { return rdb })
	box, other := b.box(t, farm.SandboxReady), b.box(t, farm.SandboxReady)
	want := map[string][]farm.Ref{}
	var plain farm.Ref   // no cell
	for i := range 320 { // more than are looked at together
		a := Execute(box.ID)
		a.Job.Redacted = &farm.Request{Execute: &farm.ExecuteRequest{Code: strings.Repeat("x", 2000)}}
		session := []string{"one", "two", ""}[i%3]
		if session != "" {
			a.Job.Redacted.Execute.Cell = &farm.Cell{Session: session}
		}
		ref := b.accept(t, a).Job.Ref()
		switch {
		case i == 0:
			b.claim(t, ref, "w") // it waits no more
		case session != "":
			want[session], want[""] = append(want[session], ref), append(want[""], ref)
		default:
			plain = ref
		}
	}
	elsewhere := Execute(other.ID)
	elsewhere.Job.Redacted = &farm.Request{Execute: &farm.ExecuteRequest{Cell: &farm.Cell{Session: "one"}}}
	b.accept(t, elsewhere)
	ctx, hold := budget.New(0).With(t.Context(), Tenant, 0)
	defer hold.Release()
	testbed.Must(t, budget.Charge(ctx, 1000))
	var whole atomic.Int64
	rdb.AddHook(testbed.Hook(func(cmds []redis.Cmder, next func(...redis.Cmder) error) error {
		for _, cmd := range cmds {
			if cmd.Name() == "hgetall" {
				whole.Add(1)
			}
		}
		return next(cmds...)
	}))
	for _, list := range want {
		slices.Reverse(list)
	}
	list := func(records int64) {
		t.Helper()
		for session, want := range want {
			whole.Store(0)
			got, err := b.QueuedCells(ctx, box, session)
			testbed.Must(t, err)
			testbed.Diff(t, fmt.Sprintf("cells of session %q", session), want, got)
			testbed.Diff(t, "records that were read as a whole", records, whole.Load())
			testbed.Check(t, hold.Bytes() == 1000, "%d bytes are held afterwards, want 1000", hold.Bytes())
		}
	}
	list(0)
	for _, ref := range []farm.Ref{want["one"][0], want["two"][5], plain} {
		rdb.HDel(t.Context(), b.prefix+"{"+Tenant+"}:job:"+ref.ID, "cell") // the release before did not write it
	}
	list(3)
}

// jobsOfASandbox are read a stretch at a time, and no more of them than it takes to find one. Each was read with a call of its own.
func jobsOfASandbox(t *testing.T, factory Factory) {
	rdb := factory(t)
	b := setup(t, func(*testing.T) redis.UniversalClient { return rdb })
	box := b.box(t, farm.SandboxReady)
	trips := 0
	rdb.AddHook(testbed.Hook(func(cmds []redis.Cmder, next func(...redis.Cmder) error) error {
		if name := cmds[0].Name(); name != "hello" && name != "client" { // of a new connection
			trips++
		}
		return next(cmds...)
	}))
	has := func(want bool, wantTrips int, kinds ...farm.JobKind) {
		t.Helper()
		trips = 0
		got, err := b.HasJob(t.Context(), box, kinds...)
		testbed.Check(t, got == want && err == nil && trips == wantTrips, "HasJob(%v) = %v, %v after %d round trips, want %v after %d", kinds, got, err, trips, want, wantTrips)
	}
	has(false, 1)
	var want []farm.Ref
	const stretch = 200
	for _, c := range []struct{ jobs, stretches int }{{1, 1}, {stretch - 1, 1}, {stretch, 1}, {stretch + 1, 2}} {
		for len(want) < c.jobs {
			want = append(want, b.accept(t, Execute(box.ID)).Job.Ref())
		}
		if c.jobs == 1 { // the script is not known yet
			_, err := b.SandboxRoutes(t.Context(), box)
			testbed.Must(t, err)
		}
		trips = 0
		routes, err := b.SandboxRoutes(t.Context(), box)
		testbed.Must(t, err)
		testbed.Check(t, slices.EqualFunc(want, routes, func(ref farm.Ref, r store.Route) bool { return r.Ref == ref }), "of %d jobs the routes are %v", c.jobs, routes)
		testbed.Check(t, trips == 1+c.stretches, "%d routes took %d round trips, want %d", c.jobs, trips, 1+c.stretches)
		testbed.Check(t, routes[0].Head && routes[0].Node == "n1" && routes[0].Kind == farm.KindExecute, "the first route is %+v", routes[0])
		has(true, 2)
		has(true, 2, farm.KindCreate, farm.KindExecute)
		has(false, 1+c.stretches, farm.KindCreate, farm.KindClose)
	}
	shut := CloseJob(box.ID)
	b.accept(t, shut)
	has(true, 2, farm.KindCreate, farm.KindClose)
	b.finish(t, b.claim(t, shut.Job.Ref(), "w").Job, farm.JobCompleted)
	has(false, 3, farm.KindCreate, farm.KindClose)
}

// pagesAreBounded filters a long list down to nothing: each page looks at a bounded number of records, and a time range ends the list as
// soon as it is passed.
func pagesAreBounded(t *testing.T, factory Factory) {
	const jobs, limit = 2500, 2000
	rdb := factory(t)
	b := setup(t, func(*testing.T) redis.UniversalClient { return rdb })
	tenant := b.prefix + "{" + Tenant + "}:"
	pipe := rdb.Pipeline()
	for i := range jobs { // as Accept writes them, but in one batch
		if i == jobs-100 {
			b.clock.forward(time.Hour)
		}
		id := fmt.Sprint("job_", i)
		pipe.HSet(t.Context(), tenant+"job:"+id, "doc", `{"id":"`+id+`"}`, "state", "queued", "kind", "execute", "created", b.clock.Now().UnixMicro())
		pipe.ZAdd(t.Context(), tenant+"jobs", redis.Z{Score: float64(i + 1), Member: id})
	}
	_, err := pipe.Exec(t.Context())
	testbed.Must(t, err)
	var sent atomic.Int64
	rdb.AddHook(testbed.Hook(func(cmds []redis.Cmder, next func(...redis.Cmder) error) error {
		sent.Add(int64(len(cmds)))
		return next(cmds...)
	}))
	list := func(f store.JobFilter) (looked int64, next string) {
		t.Helper()
		before := sent.Load()
		found, next, err := b.Jobs(t.Context(), Tenant, f, store.Page{Limit: 200})
		testbed.Require(t, err == nil && len(found) == 0, "Jobs = %d, %v; want none", len(found), err)
		return sent.Load() - before, next
	}
	none := []farm.JobState{farm.JobLost}
	n, next := list(store.JobFilter{States: none})
	if n > limit+limit/10 || next == "" {
		t.Errorf("a page of nothing took %d commands, next %q; want at most about %d, and a cursor", n, next, limit)
	}
	if n, next = list(store.JobFilter{States: none, Created: store.TimeRange{After: b.clock.Now().Add(-time.Minute)}}); n > 250 || next != "" {
		t.Errorf("a time range of the last 100 jobs took %d commands, next %q; want one batch and no cursor", n, next)
	}
	pages, seen := 1, n
	for _, next = list(store.JobFilter{States: none}); next != ""; pages++ {
		var found []*farm.Job
		var err error
		if found, next, err = b.Jobs(t.Context(), Tenant, store.JobFilter{States: none}, store.Page{Limit: 200, Cursor: next}); err != nil || len(found) != 0 {
			t.Fatalf("page %d: %d jobs, %v", pages, len(found), err)
		}
	}
	testbed.Check(t, pages == 2, "%d jobs took %d pages (%d commands), want 2", jobs, pages, seen)
	n, next = list(store.JobFilter{States: []farm.JobState{farm.JobQueued, farm.JobRunning}}) // no index of unfinished jobs has any of them
	testbed.Check(t, n == 1 && next == "", "a list of unfinished jobs took %d commands, next %q; want one and no cursor", n, next)
}

// labelsAreBounded filters sandboxes by a label that none has: each record is read as a whole, so a page looks at fewer.
func labelsAreBounded(t *testing.T, factory Factory) {
	const boxes, limit = 900, 400
	rdb := factory(t)
	b := setup(t, func(*testing.T) redis.UniversalClient { return rdb })
	tenant := b.prefix + "{" + Tenant + "}:"
	pipe := rdb.Pipeline()
	for i := range boxes {
		id := fmt.Sprint("sbx_", i)
		pipe.HSet(t.Context(), tenant+"sbx:"+id, "doc", `{"id":"`+id+`"}`, "state", "ready")
		pipe.ZAdd(t.Context(), tenant+"boxes", redis.Z{Score: float64(i + 1), Member: id})
	}
	_, err := pipe.Exec(t.Context())
	testbed.Must(t, err)
	var sent atomic.Int64
	rdb.AddHook(testbed.Hook(func(cmds []redis.Cmder, next func(...redis.Cmder) error) error {
		sent.Add(int64(len(cmds)))
		return next(cmds...)
	}))
	pages := 0
	for next := ""; pages == 0 || next != ""; pages++ {
		before := sent.Load()
		found, after, err := b.Sandboxes(t.Context(), Tenant, store.SandboxFilter{Labels: map[string]string{"a": "b"}}, store.Page{Limit: 200, Cursor: next})
		if n := sent.Load() - before; err != nil || len(found) != 0 || n > limit+limit/10 {
			t.Fatalf("page %d: %d sandboxes after %d commands, %v; want none, after at most about %d", pages, len(found), n, err, limit)
		}
		next = after
	}
	testbed.Diff(t, fmt.Sprintf("%d sandboxes took: pages", boxes), 3, pages)
	before := sent.Load()
	found, next, err := b.Sandboxes(t.Context(), Tenant, store.SandboxFilter{States: []farm.SandboxState{farm.SandboxReady}}, store.Page{}) // the index of open ones has none of them
	n := sent.Load() - before
	testbed.Check(t, err == nil && len(found) == 0 && next == "" && n == 1, "a list of open sandboxes took %d commands: %d, next %q, %v; want one command", n, len(found), next, err)
}
