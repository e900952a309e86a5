package verbs_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestLists(t *testing.T) {
	t.Parallel()
	now := time.Now()
	f := newFarm(t)
	f.Routes["GET /v1/sandboxes"] = f.gives(200, wire.List[wire.Sandbox]{Items: []wire.Sandbox{{
		ID: "sbx_1", Name: "red\x1b[31m\nname", State: "ready", Image: "python", CreatedAt: now.Add(-90 * time.Second), ExpiresAt: now.Add(3*time.Hour + time.Minute),
	}}})
	f.Routes["GET /v1/jobs"] = f.gives(200, wire.List[wire.Job]{Items: []wire.Job{{ID: "job_1", Kind: "execute", State: "queued", CreatedAt: now}}})
	f.Routes["GET /v1/queues"] = f.gives(200, wire.Items[wire.Queue]{Items: []wire.Queue{{Name: "gpu", Depth: 3, Running: 1, GPUs: 8, GPUsLeased: 5, EndedPerMinute: 2.5}}})
	f.Routes["GET /v1/images"] = f.gives(200, wire.Items[wire.Image]{Items: []wire.Image{{Name: "python", Languages: []string{"python", "bash"}, Size: 2_500_000_000, Description: "Data"}}})
	f.Routes["GET /v1/workers"] = f.gives(200, wire.Items[wire.Worker]{Items: []wire.Worker{{ID: "wrk_1", Host: "h", Slots: 4, Running: 1, Sandboxes: 2, SeenAt: now}}})
	f.Routes["GET /v1/artifacts"] = f.gives(200, wire.List[wire.Artifact]{Items: []wire.Artifact{{ID: "art_1", Path: "a.txt", Size: 12_345}}})
	tests := map[string]struct {
		args []string
		want []string // words of the second line
	}{
		"Sandboxes": {[]string{"sandbox", "ls"}, []string{"sbx_1", "red�[31m", "name", "ready", "python", "1m", "ago", "in", "3h"}},
		"Jobs":      {[]string{"job", "ls"}, []string{"job_1", "execute", "queued", "-", "-", "0s", "ago", "-", "-"}},
		"Queues":    {[]string{"queues"}, []string{"gpu", "3", "1", "2.5", "5/8"}},
		"Image":     {[]string{"image", "ls"}, []string{"python", "python,", "bash", "2.3", "GiB", "Data"}},
		"Images":    {[]string{"images"}, []string{"python", "python,", "bash", "2.3", "GiB", "Data"}},
		"Workers":   {[]string{"workers"}, []string{"wrk_1", "h", "1/4", "2", "-", "-", "0s", "ago", "ok"}},
		"Artifacts": {[]string{"artifact", "ls"}, []string{"art_1", "a.txt", "12.1", "KiB", "-", "-", "-"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := f.sandfarm(t.Context(), "", test.args...)
			lines := strings.Split(got.out, "\n")
			if got.code != 0 || len(lines) != 3 || !slices.Equal(strings.Fields(lines[1]), test.want) {
				t.Errorf("%+v, want the words %q", got, test.want)
			}
			got = f.sandfarm(t.Context(), "", append(test.args, "--json")...)
			var list wire.List[map[string]any]
			decode(t, got.out, &list)
			if len(list.Items) != 1 || list.NextCursor != "" {
				t.Errorf("--json printed %s", got.out)
			}
		})
	}
}

// TestListsSayThatThereAreMore: a list that ended at its limit looked whole.
func TestListsSayThatThereAreMore(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	now := time.Now()
	f.Routes["GET /v1/jobs"] = f.gives(200, wire.List[wire.Job]{Items: []wire.Job{{ID: "job_3"}, {ID: "job_2"}, {ID: "job_1"}}})
	f.Routes["GET /v1/artifacts"] = f.gives(200, wire.List[wire.Artifact]{Items: []wire.Artifact{{ID: "art_3"}, {ID: "art_2"}, {ID: "art_1"}}})
	f.Routes["GET /v1/keys"] = f.gives(200, wire.List[wire.Key]{Items: []wire.Key{{ID: "key_3"}, {ID: "key_2"}, {ID: "key_1"}}})
	f.Routes["GET /v1/tenants"] = f.gives(200, wire.List[wire.Tenant]{Items: []wire.Tenant{{Name: "c"}, {Name: "b"}, {Name: "a"}}})
	f.Routes["GET /v1/audit"] = f.gives(200, wire.List[wire.AuditEntry]{Items: []wire.AuditEntry{{ID: "3", At: now}, {ID: "2", At: now}, {ID: "1", At: now}}})
	for _, list := range [][]string{{"job", "ls"}, {"artifact", "ls"}, {"key", "ls"}, {"tenant", "ls"}, {"audit"}} {
		for limit, want := range map[string]struct {
			lines int
			note  string
		}{
			"2": {2, "sandfarm: the list has more than 2; --limit 0 shows all\n"},
			"3": {3, ""},
			"0": {3, ""},
		} {
			got := f.sandfarm(t.Context(), "", append(list, "--limit", limit)...)
			if lines := strings.Count(got.out, "\n") - 1; got.code != 0 || lines != want.lines || got.stderr != want.note {
				t.Errorf("%s --limit %s: %+v, want %d lines and %q", list, limit, got, want.lines, want.note)
			}
		}
	}
	got := f.sandfarm(t.Context(), "", "job", "ls", "--json", "--limit", "2")
	var list wire.List[wire.Job]
	decode(t, got.out, &list)
	if len(list.Items) != 2 || got.stderr == "" {
		t.Errorf("--json: %+v, want 2 items and the note", got)
	}
}

func TestJobLsShowsOutcomes(t *testing.T) {
	t.Parallel()
	ok, failed := "ok", "failed"
	code := func(exit int, name string) *wire.Result {
		e := &wire.ExecuteResult{ExitCode: exit}
		if name != "" {
			e.Error = &wire.CodeError{Name: name}
		}
		return &wire.Result{Execute: e}
	}
	for name, test := range map[string]struct {
		job  wire.Job
		want string
	}{
		"OK":       {wire.Job{State: "completed", Outcome: &ok, Result: code(0, "")}, "ok"},
		"Raised":   {wire.Job{State: "completed", Outcome: &failed, Result: code(1, "ValueError\x1b[31m")}, "ValueError�[31m"},
		"Exit":     {wire.Job{State: "completed", Outcome: &failed, Result: code(3, "SystemExit")}, "exit 3"},
		"Command":  {wire.Job{State: "completed", Outcome: &failed, Result: &wire.Result{Command: &wire.CommandResult{Results: []wire.CommandOutcome{{ExitCode: 2}, {}}}}}, "exit 2"},
		"Package":  {wire.Job{State: "completed", Outcome: &failed, Result: &wire.Result{Install: &wire.InstallResult{}}}, "failed"},
		"TimedOut": {wire.Job{State: "timed_out", Outcome: &failed, Result: code(1, "KeyboardInterrupt")}, "failed"},
		"Running":  {wire.Job{State: "running"}, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t)
			test.job.ID, test.job.Kind = "job_1", "execute"
			f.Routes["GET /v1/jobs"] = f.gives(200, wire.List[wire.Job]{Items: []wire.Job{test.job}})
			got := f.sandfarm(t.Context(), "", "job", "ls", "--failed", "--kind", "run,execute")
			lines := strings.Split(got.out, "\n")
			if got.code != 0 || len(lines) != 3 || !strings.Contains(lines[1], "  "+test.want+"  ") {
				t.Errorf("%+v, want the outcome %q", got, test.want)
			}
			testbed.Diff(t, "requests", []string{"GET /v1/jobs?kind=run%2Cexecute&limit=200&outcome=failed"}, f.asked())
		})
	}
}

func TestJobLsShowsWhatJobsDo(t *testing.T) {
	t.Parallel()
	line := strings.Repeat("é", 39)
	for want, request := range map[string]*wire.JobSpec{
		"work.py": {Filename: "work.py", Code: "1"}, "a = 1…": {Code: "\n a = 1\nb"}, "ls; pwd": {Commands: []string{"ls", "pwd"}}, "six numpy": {Packages: []string{"six", "numpy"}},
		"in/a.csv": {Operation: "write", Path: "in/a.csv"}, line: {Code: line}, line + "x": {Code: line + "x"}, line + "…": {Code: line + "xy"}, "�[31m": {Code: "\x1b[31m"}, "-": {},
	} {
		f := newFarm(t)
		f.Routes["GET /v1/jobs"] = f.gives(200, wire.List[wire.Job]{Items: []wire.Job{{ID: "job_1", Request: request}}})
		got := f.sandfarm(t.Context(), "", "job", "ls")
		if lines := strings.Split(got.out, "\n"); got.code != 0 || len(lines) != 3 || !strings.HasSuffix(lines[1], "  "+want) {
			t.Errorf("%+v, want %q at the end", got, want)
		}
	}
}

func TestSandboxLsAsksForOpenOnes(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"&state=queued%2Cstarting%2Cready%2Cbusy%2Chibernated%2Cclosing": nil,
		"":              {"--all"},
		"&state=closed": {"--state", "closed"},
	} {
		f := newFarm(t)
		f.Routes["GET /v1/sandboxes"] = f.gives(200, wire.List[wire.Sandbox]{})
		got := f.sandfarm(t.Context(), "", append([]string{"sandbox", "ls"}, args...)...)
		if diff := cmp.Diff([]string{"GET /v1/sandboxes?limit=200" + want}, f.asked()); diff != "" || got.code != 0 {
			t.Errorf("%q: %+v %s", args, got, diff)
		}
	}
}

func TestEveryMissingIDIsReported(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	missing := func(w http.ResponseWriter, r *http.Request) {
		f.answer(w, http.StatusNotFound, wire.Problem{Status: 404, Code: "not_found", Detail: "there is no " + r.PathValue("id"), RequestID: "req_1"})
	}
	f.Routes["GET /v1/sandboxes/{id}"] = missing
	f.Routes["DELETE /v1/sandboxes/{box}/files/{id}"] = missing
	for verb, args := range map[string][]string{"close": {"sandbox", "close"}, "remove": {"files", "rm", "sbx_1"}} {
		got := f.sandfarm(t.Context(), "", append(args, "A", "B")...)
		want := "sandfarm: " + verb + " A: there is no A.\nsandfarm: " + verb + " B: there is no B.\n"
		testbed.Diff(t, verb, outputs{verbs.ExitError, "", want}, got, cmp.AllowUnexported(outputs{}))
	}
}
