package mcp_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestCreateSandbox(t *testing.T) {
	t.Parallel()
	ends := time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC)
	box := wire.Sandbox{ID: "sbx_1", Name: "mine", State: "ready", Image: "python", ExpiresAt: ends}
	f := &fakeFarm{CreateFunc: func(_ context.Context, r wire.CreateRequest, wait time.Duration) (wire.Created, error) {
		if wait != 45*time.Second || r.Name != "mine" || *r.Image != "python" || *r.Network != "none" || *r.TTLSeconds != 60 || len(r.Packages) != 2 || r.GPU == nil || *r.GPU.Count != 2 || r.GPU.Model != "a100" ||
			r.Resources == nil || *r.Resources.MemoryMB != 4096 || *r.Resources.CPUs != 0.5 || *r.Resources.DiskMB != 2048 {
			return wire.Created{}, farm.Invalidf("request is %+v, %s", r, wait)
		}
		return wire.Created{Sandbox: box, Job: wire.Job{ID: "job_1", State: "completed", Result: &wire.Result{Install: &wire.InstallResult{
			Packages: []wire.InstalledOne{{Name: "a", Requested: "a", Status: "installed", Version: "1"}, {Name: "b", Requested: "b>1", Status: "failed", Message: "There is no b."}},
		}}}}, nil
	}}
	b := setup(t, f)
	r := b.call("create_sandbox", map[string]any{"name": "mine", "image": "python", "network": "none", "ttl_seconds": 60, "packages": []string{"a", "b>1"}, "gpu": 2, "gpu_model": "a100", "memory_mb": 4096, "cpus": 0.5, "disk_mb": 2048})
	want := map[string]any{
		"sandbox_id": "sbx_1", "name": "mine", "state": "ready", "image": "python", "expires_at": "2026-11-22T01:02:03Z", "job_id": "job_1",
		"packages": []any{
			map[string]any{"name": "a", "requested": "a", "status": "installed", "version": "1", "message": ""},
			map[string]any{"name": "b", "requested": "b>1", "status": "failed", "version": "", "message": "There is no b."},
		},
	}
	if diff := cmp.Diff(want, r.StructuredContent); diff != "" || !strings.Contains(textOf(r), "sbx_1") || !strings.Contains(textOf(r), "There is no b.") {
		t.Errorf("%s\n%s", diff, textOf(r))
	}
}

// The farm's errors name resources.memory_mb; the tool's parameter is memory_mb.
func TestErrorsOfResourcesNameTheParameters(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{CreateFunc: func(_ context.Context, r wire.CreateRequest, _ time.Duration) (wire.Created, error) {
		if r.Resources == nil || *r.Resources.MemoryMB != 1 || r.Resources.CPUs != nil {
			return wire.Created{}, fmt.Errorf("resources are %+v", r.Resources)
		}
		return wire.Created{}, farm.Invalidf("resources.memory_mb is 1; it must be from 64 to 65536")
	}})
	if r := b.call("create_sandbox", map[string]any{"memory_mb": 1}); !r.IsError || !strings.HasPrefix(textOf(r), "memory_mb is 1; it must be from 64 to 65536") {
		t.Error(textOf(r))
	}
}

// With progress the sandbox used to be read before its job's end.
func TestCreateWithProgressReturnsTheLastState(t *testing.T) {
	t.Parallel()
	f := &fakeFarm{
		CreateFunc: func(context.Context, wire.CreateRequest, time.Duration) (wire.Created, error) {
			return wire.Created{Sandbox: wire.Sandbox{ID: "sbx_1", State: "queued"}, Job: wire.Job{ID: "job_1", State: "queued"}}, nil
		},
		EventsFunc: func(context.Context, string) iter.Seq2[wire.Event, error] {
			return func(yield func(wire.Event, error) bool) {
				_ = yield(event("progress", wire.ProgressData{Message: "making a sandbox"}), nil) && yield(event("state", wire.StateData{State: "completed"}), nil)
			}
		},
		JobFunc: func(context.Context, string, time.Duration) (wire.Job, error) {
			return wire.Job{ID: "job_1", State: "completed"}, nil
		},
	}
	_, text := setup(t, f).post(toolCall(1, "create_sandbox", nil, "t"))
	if !strings.Contains(text, "making a sandbox") || !strings.Contains(text, `"state":"ready"`) {
		t.Error(text)
	}
}

func TestCreateThatIsNotDone(t *testing.T) {
	t.Parallel()
	var job wire.Job
	b := setup(t, &fakeFarm{CreateFunc: func(context.Context, wire.CreateRequest, time.Duration) (wire.Created, error) {
		return wire.Created{Sandbox: wire.Sandbox{ID: "sbx_1", State: "starting"}, Job: job}, nil
	}})
	job = wire.Job{ID: "job_1", State: "running"}
	if r := b.call("create_sandbox", nil); field(t, r, "state") != "starting" || !strings.Contains(textOf(r), `"job_1"`) || !strings.Contains(textOf(r), "get_job_result") {
		t.Error(textOf(r))
	}
	job = wire.Job{ID: "job_1", State: "failed", Error: &wire.JobError{Code: "unavailable", Message: "No worker came."}}
	if r := b.call("create_sandbox", nil); !r.IsError || !strings.Contains(textOf(r), "No worker came.") {
		t.Error(textOf(r))
	}
}

func TestCloseSandbox(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]string{"completed": "closed", "running": "closing", "queued": "closing"} {
		b := setup(t, &fakeFarm{CloseFunc: func(_ context.Context, id string, _ time.Duration) (wire.Job, error) {
			return wire.Job{ID: "job_1", SandboxID: id, State: state}, nil
		}})
		if r := b.call("close_sandbox", map[string]any{"sandbox_id": "sbx_1"}); field(t, r, "state") != want || !strings.Contains(textOf(r), want) {
			t.Errorf("%s: %s", state, textOf(r))
		}
	}
}

func TestListSandboxes(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{SandboxesFunc: func(context.Context) ([]wire.Sandbox, error) {
		return []wire.Sandbox{{ID: "sbx_2", Name: "b", State: "ready"}, {ID: "sbx_1", State: "busy"}}, nil
	}})
	r := b.call("list_sandboxes", nil)
	if list := field(t, r, "sandboxes").([]any); len(list) != 2 || !strings.Contains(textOf(r), `sbx_2 "b": ready`) || !strings.Contains(textOf(r), "sbx_1: busy") {
		t.Errorf("%v\n%s", list, textOf(r))
	}
}

func TestInstallThenPoll(t *testing.T) {
	t.Parallel()
	status := "installing"
	f := &fakeFarm{
		InstallFunc: func(_ context.Context, id string, r wire.PackagesRequest, wait time.Duration) (wire.Job, error) {
			if wait != 0 || len(r.Packages) != 2 || r.Manager != nil {
				return wire.Job{}, farm.Invalidf("request is %+v, %s", r, wait)
			}
			return wire.Job{ID: "job_1", Kind: "install", SandboxID: id, State: "queued"}, nil
		},
		PackageFunc: func(_ context.Context, _, _, name string) (wire.Package, error) {
			p := wire.Package{Name: strings.ToLower(name), Status: status, JobID: "job_1"}
			switch status {
			case "installed":
				p.Version = "1.2"
			case "failed":
				p.Message = "There is no such package."
				if name == "old" { // an earlier version is still installed
					p.Version = "0.9"
				}
			}
			return p, nil
		},
		JobFunc: func(_ context.Context, _ string, wait time.Duration) (wire.Job, error) {
			if wait > 0 {
				status = "installed"
			}
			return wire.Job{ID: "job_1", Kind: "install", SandboxID: "sbx_1", State: "completed", Result: &wire.Result{Install: &wire.InstallResult{
				Packages: []wire.InstalledOne{{Name: "numpy", Requested: "NumPy>=2", Status: "installed", Version: "2.1"}},
			}}}, nil
		},
	}
	b := setup(t, f)
	r := b.call("install_packages_in_sandbox", map[string]any{"sandbox_id": "sbx_1", "package_names": []string{"NumPy>=2", "python_dateutil"}})
	want := []any{
		map[string]any{"name": "numpy", "requested": "NumPy>=2", "status": "installing", "version": "", "message": ""},
		map[string]any{"name": "python-dateutil", "requested": "python_dateutil", "status": "installing", "version": "", "message": ""},
	}
	if diff := cmp.Diff(want, field(t, r, "packages")); diff != "" || !strings.Contains(textOf(r), "check_package_status") || !strings.Contains(textOf(r), "job_1") {
		t.Errorf("%s\n%s", diff, textOf(r))
	}
	check := func(wait float64) (string, string) {
		r := b.call("check_package_status", map[string]any{"sandbox_id": "sbx_1", "package_name": "NumPy", "wait_seconds": wait})
		return field(t, r, "status").(string), textOf(r)
	}
	if status, text := check(0); status != "installing" || !strings.Contains(text, "check_package_status again") {
		t.Errorf("%s %s", status, text)
	}
	if status, text := check(5); status != "installed" || !strings.Contains(text, "1.2") {
		t.Errorf("%s %s", status, text)
	}
	status = "failed"
	if status, text := check(0); status != "failed" || !strings.Contains(text, "no such package") {
		t.Errorf("%s %s", status, text)
	}
	r = b.call("check_packages_installation_status", map[string]any{"sandbox_id": "sbx_1", "package_names": []string{"A", "B[x] >= 2", "old"}})
	found := field(t, r, "packages").(map[string]any)
	for name, want := range map[string]map[string]any{
		"A": {"name": "a", "installed": false}, "B[x] >= 2": {"name": "b", "installed": false}, "old": {"name": "old", "installed": true},
	} {
		if one, _ := found[name].(map[string]any); one["name"] != want["name"] || one["installed"] != want["installed"] || len(found) != 3 {
			t.Errorf("%s: %v", name, found)
		}
	}
	r = b.call("get_job_result", map[string]any{"job_id": "job_1"})
	if list := field(t, r, "packages").([]any); len(list) != 1 || field(t, r, "kind") != "install" || !strings.Contains(textOf(r), "numpy 2.1") {
		t.Errorf("%v\n%s", list, textOf(r))
	}
}

// A message that says what to do gets no second piece of advice, which could contradict it.
func TestAdviceIsGivenOnce(t *testing.T) {
	t.Parallel()
	const lost = "The sandbox was lost. Create a new sandbox and send the job again."
	const away = "No farm answers. Ask the user to start it; then try again."
	const full = "There are too many sandboxes. Try again in 30s."
	for name, c := range map[string]struct {
		job  wire.Job
		err  error
		want string
	}{
		"Lost":     {job: wire.Job{ID: "job_1", State: "lost", Error: &wire.JobError{Code: "unavailable", Message: lost}}, want: lost + " (job job_1, lost)"},
		"Away":     {err: farm.Errorf(farm.CodeUnavailable, away), want: away},
		"TooLarge": {err: farm.QuotaError(farm.QuotaUse{Name: farm.QuotaGPUs, Limit: 1}, 2), want: "The quota max_gpus of your tenant allows 1: this request alone needs 2, so it can never succeed. Ask for fewer GPUs, or ask the farm's operator to raise it."},
		"Full":     {err: farm.Errorf(farm.CodeExhausted, full), want: full + "\nclose_sandbox frees what is no longer needed."},
		"Silent":   {err: farm.Errorf(farm.CodeUnavailable, "Redis is away."), want: "Redis is away.\nTry again in a few seconds."},
	} {
		b := setup(t, &fakeFarm{ExecuteFunc: func(context.Context, string, wire.ExecuteRequest, time.Duration) (wire.Job, error) {
			return c.job, c.err
		}})
		if r := python(b, nil); textOf(r) != c.want || !r.IsError {
			t.Errorf("%s: want %q, got %q", name, c.want, textOf(r))
		}
	}
}

func TestErrorsOfTheFarmSayWhatToDo(t *testing.T) {
	t.Parallel()
	secret := "redis://user:secret@10.0.0.1"
	for name, c := range map[string]struct {
		err  error
		want []string
	}{
		"Invalid":     {farm.Invalidf("timeout_seconds is -1; it must be from 1 to 86400"), []string{"timeout_seconds is -1", "call execute_python_code again"}},
		"NotFound":    {farm.NotFoundf("There is no sandbox %q.", "sbx_1"), []string{"sbx_1", "list_sandboxes"}},
		"Conflict":    {farm.NoMoreWork("sbx_1", farm.SandboxClosed, ""), []string{"closed", "create_sandbox"}},
		"TooLarge":    {farm.Errorf(farm.CodeTooLarge, "code has 11 bytes; at most 10 are allowed"), []string{"at most 10", "less"}},
		"Exhausted":   {farm.Errorf(farm.CodeExhausted, "Too many jobs wait."), []string{"Too many jobs", "Wait"}},
		"Unavailable": {farm.Wrap(errors.New(secret), farm.CodeUnavailable, "Redis does not answer."), []string{"Redis does not answer.", "Try again"}},
		"Internal":    {errors.New(secret), []string{"req_", "log"}},
		"Coded":       {farm.Errorf(farm.CodeInternal, "%s", secret), []string{"req_"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, &fakeFarm{ExecuteFunc: func(context.Context, string, wire.ExecuteRequest, time.Duration) (wire.Job, error) {
				return wire.Job{}, c.err
			}})
			r := python(b, nil)
			for _, want := range c.want {
				if !r.IsError || !strings.Contains(textOf(r), want) || strings.Contains(textOf(r), "secret") {
					t.Errorf("want %q in: %s", want, textOf(r))
				}
			}
			if id := strings.Index(textOf(r), "req_"); id >= 0 {
				if !strings.Contains(b.log.String(), textOf(r)[id:id+30]) || !strings.Contains(b.log.String(), "secret") {
					t.Errorf("the log does not tell more: %s", b.log)
				}
			}
		})
	}
}

func TestPanicsAreNotShown(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{
		SandboxesFunc: func(context.Context) ([]wire.Sandbox, error) { panic("secret") },
		ArtifactFunc:  func(context.Context, string, int64) (mcp.Artifact, error) { panic("secret") },
	})
	r := b.call("list_sandboxes", nil)
	if !r.IsError || strings.Contains(textOf(r), "secret") || !strings.Contains(b.log.String(), "secret") {
		t.Errorf("%s\n%s", textOf(r), b.log)
	}
	if _, text := b.post(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"sandfarm://artifacts/x"}}`); strings.Contains(text, "secret") || !strings.Contains(text, "req_") {
		t.Error(text)
	}
}

// An unknown tool is named once.
func TestUnknownToolIsNamedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{})
	_, text := b.post(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"run_pythn","arguments":{}}}`)
	if !strings.Contains(text, `"id":7`) || !strings.Contains(text, `{"code":-32602,"message":"There is no tool \"run_pythn\"."}`) {
		t.Error(text)
	}
}
