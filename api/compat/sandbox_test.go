package compat_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/compat"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// sandboxBundle is a toolset over its own fake farm, with one sandbox.
type sandboxBundle struct {
	t    *testing.T
	farm *fakeFarm
	set  *compat.Toolset
	env  compat.Env
	box  string
}

func setupSandbox(t *testing.T) *sandboxBundle {
	t.Helper()
	b := &sandboxBundle{t: t, farm: &fakeFarm{}, set: toolsetNamed("sandbox")}
	b.env = compat.Env{Farm: func(context.Context) compat.Farm { return b.farm }}
	made, err := b.call("create_sandbox", map[string]any{"name": "first"})
	testbed.Must(t, err)
	b.box, _ = made["sandbox_id"].(string)
	return b
}

// call calls a tool and returns its answer, decoded from JSON.
func (b *sandboxBundle) call(tool string, args any) (map[string]any, error) {
	b.t.Helper()
	reply, err := b.set.Call(b.t.Context(), b.env, tool, args)
	text, broken := farm.Encode(reply.Value)
	testbed.Must(b.t, broken)
	var out map[string]any
	if broken := json.Unmarshal(text, &out); broken != nil {
		b.t.Fatalf("%s: %v in %s", tool, broken, text)
	}
	return out, err
}

// in adds the sandbox to arguments.
func (b *sandboxBundle) in(more map[string]any) map[string]any {
	more["sandbox_id"] = b.box
	return more
}

func TestNamesAreUniqueAmongOpenSandboxes(t *testing.T) {
	t.Parallel()
	b := setupSandbox(t)
	if got, err := b.call("create_sandbox", map[string]any{"name": "first"}); farm.CodeOf(err) != farm.CodeConflict || got["error"] != true || !strings.Contains(got["message"].(string), "python-sandbox-first") {
		t.Errorf("%v %v", got, err)
	}
	_, err := b.farm.CloseSandbox(t.Context(), b.box, 0)
	testbed.Must(t, err)
	if got, err := b.call("create_sandbox", map[string]any{"name": "first"}); err != nil || got["name"] != "python-sandbox-first" || got["sandbox_name"] != got["name"] || got["status"] != "active" {
		t.Errorf("%v %v", got, err)
	}
	seen := map[any]bool{}
	for _, args := range []any{nil, map[string]any{}, map[string]any{"name": nil}, map[string]any{"name": ""}} {
		got, err := b.call("create_sandbox", args)
		if name, _ := got["name"].(string); err != nil || len(name) <= len("python-sandbox-") || name == "python-sandbox-None" || seen[name] {
			t.Errorf("%v %v", got, err)
		}
		seen[got["name"]] = true
	}
}

func TestOfManyCreatesWithOneNameOneSucceeds(t *testing.T) {
	t.Parallel()
	b := setupSandbox(t)
	var mu sync.Mutex
	var all sync.WaitGroup
	codes := map[farm.Code]int{}
	for range 8 {
		all.Go(func() {
			_, err := b.set.Call(t.Context(), b.env, "create_sandbox", map[string]any{"name": "same"})
			mu.Lock()
			defer mu.Unlock()
			codes[farm.CodeOf(err)]++
		})
	}
	all.Wait()
	testbed.Diff(t, "", map[farm.Code]int{"": 1, farm.CodeConflict: 7}, codes)
}

// slowFarm blocks in the lookup of one name.
type slowFarm struct {
	*fakeFarm
	name            string
	asked, answered chan struct{}
}

func (f *slowFarm) Labeled(ctx context.Context, labels map[string]string) ([]wire.Sandbox, error) {
	if labels["python-sandbox"] == f.name {
		f.asked <- struct{}{}
		<-f.answered
	}
	return f.fakeFarm.Labeled(ctx, labels)
}

type tenantKey struct{}

// All creates used to wait for one lock, and later those of one name for that of the name, so a tenant with many sandboxes and calls delayed the creates of
// others.
func TestACreateDoesNotDelayCreatesOfOtherNamesAndTenants(t *testing.T) {
	t.Parallel()
	b := setupSandbox(t)
	slow := &slowFarm{fakeFarm: b.farm, name: "python-sandbox-slow", asked: make(chan struct{}, 2), answered: make(chan struct{})}
	b.env.Tenant = func(ctx context.Context) string {
		tenant, _ := ctx.Value(tenantKey{}).(string)
		return tenant
	}
	b.env.Farm = func(ctx context.Context) compat.Farm {
		if b.env.Tenant(ctx) == "another" {
			return &fakeFarm{}
		}
		return slow
	}
	var held sync.WaitGroup
	held.Go(func() {
		if _, err := b.set.Call(t.Context(), b.env, "create_sandbox", map[string]any{"name": "slow"}); err != nil {
			t.Error(err)
		}
	})
	<-slow.asked
	other := make(chan error, 1)
	go func() {
		_, err := b.set.Call(t.Context(), b.env, "create_sandbox", map[string]any{"name": "other"})
		_, again := b.set.Call(context.WithValue(t.Context(), tenantKey{}, "another"), b.env, "create_sandbox", map[string]any{"name": "slow"})
		other <- errors.Join(err, again)
	}()
	select {
	case err := <-other:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		close(slow.answered)
		held.Wait()
		t.Fatal("a create waits for one of another name or tenant")
	}
	ctx, leave := context.WithCancel(t.Context())
	leave()
	if _, err := b.set.Call(ctx, b.env, "create_sandbox", map[string]any{"name": "slow"}); farm.CodeOf(err) != farm.CodeUnavailable {
		t.Errorf("a disconnected caller still waits, or gets %v", err)
	}
	close(slow.answered)
	held.Wait()
}

func TestSandboxesAreFoundByName(t *testing.T) {
	t.Parallel()
	b := setupSandbox(t)
	if box, err := compat.FindSandbox(t.Context(), b.farm, "python-sandbox-first"); err != nil || box.ID != b.box {
		t.Errorf("%v %v", box, err)
	}
	other, err := b.farm.CreateSandbox(t.Context(), wire.CreateRequest{Name: "elsewhere"}, 0)
	testbed.Must(t, err)
	if box, err := compat.FindSandbox(t.Context(), b.farm, "elsewhere"); err != nil || box.ID != other.Sandbox.ID {
		t.Errorf("%v %v", box, err)
	}
	for _, name := range []string{"first", "", "../x"} {
		if box, err := compat.FindSandbox(t.Context(), b.farm, name); farm.CodeOf(err) != farm.CodeNotFound {
			t.Errorf("%q: %v %v", name, box, err)
		}
	}
}

func TestListReportsDockersStates(t *testing.T) {
	t.Parallel()
	b := setupSandbox(t)
	reply, err := b.set.Call(t.Context(), b.env, "list_sandboxes", nil)
	testbed.Must(t, err)
	text, _ := farm.Encode(reply.Value)
	var list []map[string]any
	if err := json.Unmarshal(text, &list); err != nil || len(list) != 1 {
		t.Fatalf("%s: %v", text, err)
	}
	if one := list[0]; one["sandbox_id"] != b.box || one["status"] != "running" || one["name"] != "python-sandbox-first" || !strings.HasPrefix(b.box, one["sandbox_short_id"].(string)) || one["image"] != "python" || one["cpu"] != 2.0 {
		t.Errorf("%v", one)
	}
}

func TestExecuteAnswersAsAProcessWould(t *testing.T) {
	t.Parallel()
	b := setupSandbox(t)
	for name, test := range map[string]struct {
		job  wire.Job
		want map[string]any
	}{
		"Fine": {
			completed(&wire.Result{Execute: &wire.ExecuteResult{Stdout: "a\n", Artifacts: []wire.Artifact{{Path: "图/a b.txt", URL: "http://s/1"}}}}),
			map[string]any{"stdout": "a\n", "stderr": "", "exit_code": 0.0, "files": []any{"/app/results/图/a b.txt"}, "file_links": []any{"http://s/1"}, "machine_file_links": []any{"http://s/1"}},
		},
		"Raised": {
			completed(&wire.Result{Execute: &wire.ExecuteResult{Stderr: "warn", ExitCode: 1, Error: &wire.CodeError{Name: "ValueError", Value: "x", Traceback: []string{"Traceback (most recent call last)", "ValueError: x"}}}}),
			map[string]any{"stdout": "", "stderr": "warn\nTraceback (most recent call last)\nValueError: x\n", "exit_code": 1.0, "files": []any{}, "file_links": []any{}, "machine_file_links": []any{}},
		},
		"KernelDied": {
			completed(&wire.Result{Execute: &wire.ExecuteResult{ExitCode: 137, Error: &wire.CodeError{Name: "OutOfMemory", Value: "it had 64 MiB"}}}),
			map[string]any{"stdout": "", "stderr": "OutOfMemory: it had 64 MiB\n", "exit_code": 137.0, "files": []any{}, "file_links": []any{}, "machine_file_links": []any{}},
		},
		"TimedOut": {
			wire.Job{State: "timed_out", Error: &wire.JobError{Message: "It ran for 300 s."}, Result: &wire.Result{Execute: &wire.ExecuteResult{Stdout: "so far\n"}}},
			map[string]any{"error": "It ran for 300 s.", "stdout": "so far\n", "stderr": "It ran for 300 s.\n", "exit_code": 1.0, "files": []any{}, "file_links": []any{}, "machine_file_links": []any{}},
		},
		"Lost": {
			wire.Job{State: "lost"},
			map[string]any{"error": "The work ended early: it was lost.", "stdout": "", "stderr": "The work ended early: it was lost.\n", "exit_code": 1.0, "files": []any{}, "file_links": []any{}, "machine_file_links": []any{}},
		},
	} {
		b.farm.ExecuteFunc = func(context.Context, wire.ExecuteRequest) wire.Job { return test.job }
		for _, id := range []string{"sandbox_id", "container_id"} {
			got, err := b.call("execute_python_code", map[string]any{id: b.box, "code": "x"})
			if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
				t.Errorf("%s by %s: %v %s", name, id, err, diff)
			}
		}
	}
}

// A call used to cancel its job when its client disconnected, other than over REST and the farm's own tools.
func TestAJobContinuesWhenItsCallerDisconnects(t *testing.T) {
	t.Parallel()
	b := setupSandbox(t)
	ctx, leave := context.WithCancel(t.Context())
	b.farm.ExecuteFunc = func(context.Context, wire.ExecuteRequest) wire.Job { return wire.Job{ID: "job_1", State: "running"} }
	b.farm.JobFunc = func(ctx context.Context, _ string, _ time.Duration) (wire.Job, error) {
		leave()
		<-ctx.Done()
		return wire.Job{}, ctx.Err()
	}
	if _, err := b.set.Call(ctx, b.env, "execute_python_code", b.in(map[string]any{"code": "while True: pass"})); farm.CodeOf(err) != farm.CodeUnavailable {
		t.Errorf("%v", err)
	}
	if canceled := b.farm.Canceled(); len(canceled) > 0 {
		t.Errorf("canceled: %v", canceled)
	}
}

func TestRefusalsHaveTheSystemsShape(t *testing.T) {
	t.Parallel()
	b := setupSandbox(t)
	b.farm.InstallFunc = func(context.Context, wire.PackagesRequest) (wire.Job, error) {
		return wire.Job{}, errors.New("redis://secret")
	}
	for name, test := range map[string]struct {
		tool string
		args any
		code farm.Code
		word string
	}{
		"NoTool":         {"nothing", nil, farm.CodeNotFound, "nothing"},
		"NoObject":       {"create_sandbox", []any{1}, farm.CodeInvalid, "object"},
		"NoCode":         {"execute_python_code", b.in(map[string]any{}), farm.CodeInvalid, "code"},
		"CodeOfNoText":   {"execute_python_code", b.in(map[string]any{"code": 7.0}), farm.CodeInvalid, "code"},
		"NoSandbox":      {"execute_python_code", map[string]any{"code": "1"}, farm.CodeInvalid, "sandbox_id"},
		"UnknownSandbox": {"execute_python_code", map[string]any{"code": "1", "sandbox_id": "sbx_0"}, farm.CodeNotFound, "sbx_0"},
		"NamesOfNoArray": {"install_packages_in_sandbox", b.in(map[string]any{"package_names": "six"}), farm.CodeInvalid, "package_names"},
		"NoNames":        {"check_packages_installation_status", b.in(map[string]any{"package_names": []any{}}), farm.CodeInvalid, "package_names"},
		"Ours":           {"install_packages_in_sandbox", b.in(map[string]any{"package_names": []any{"six"}}), farm.CodeInternal, "req_"},
		"UnknownName":    {"create_sandbox", map[string]any{"nam": "x"}, farm.CodeInvalid, "nam"},
	} {
		got, err := b.call(test.tool, test.args)
		if message, _ := got["message"].(string); farm.CodeOf(err) != test.code || got["error"] != true || !strings.Contains(message, test.word) || strings.Contains(message, "secret") {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
	got, err := b.call("execute_terminal_command", map[string]any{"command": "true", "sandbox_id": "sbx_0"})
	if farm.CodeOf(err) != farm.CodeNotFound || got["stdout"] != "" || got["exit_code"] != -1.0 || !strings.Contains(got["stderr"].(string), "sbx_0") {
		t.Errorf("a command: %v %v", got, err)
	}
}

func TestCommandsThatDoNotEndSayWhy(t *testing.T) {
	t.Parallel()
	b := setupSandbox(t)
	b.farm.CommandFunc = func(_ context.Context, r wire.CommandRequest) wire.Job {
		if *r.Command == "sleep" {
			return wire.Job{State: "timed_out", Error: &wire.JobError{Message: "Too long."}}
		}
		return completed(&wire.Result{Command: &wire.CommandResult{Results: []wire.CommandOutcome{{Stdout: "o", Stderr: "e", ExitCode: 7}}}})
	}
	for line, want := range map[string]map[string]any{
		"echo":  {"stdout": "o", "stderr": "e", "exit_code": 7.0},
		"sleep": {"stdout": "", "stderr": "Too long.", "exit_code": -1.0},
	} {
		got, err := b.call("execute_terminal_command", b.in(map[string]any{"command": line}))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v %s", line, err, diff)
		}
	}
}

func TestAnEmptyProgramSucceeds(t *testing.T) {
	t.Parallel()
	b := setupSandbox(t)
	b.farm.ExecuteFunc = func(_ context.Context, r wire.ExecuteRequest) wire.Job {
		return completed(&wire.Result{Execute: &wire.ExecuteResult{Stdout: r.Code}})
	}
	if got, err := b.call("execute_python_code", b.in(map[string]any{"code": ""})); err != nil || got["stdout"] != "pass" || got["exit_code"] != 0.0 {
		t.Errorf("%v %v", got, err)
	}
}

// sandboxLocal has one file.
type sandboxLocal struct{}

func (sandboxLocal) Open(path string) (io.ReadCloser, int64, error) {
	if path != "/home/me/in.csv" {
		return nil, 0, errors.New("there is no such file")
	}
	return io.NopCloser(strings.NewReader("local")), 5, nil
}

func (sandboxLocal) Create(string) (io.WriteCloser, error) { return nil, errors.New("not here") }

func TestUploadsGoIntoADirectory(t *testing.T) {
	t.Parallel()
	b := setupSandbox(t)
	for name, test := range map[string]struct {
		args  map[string]any
		local bool
		want  string // the file with its content, or a word of the refusal
	}{
		"Standard":    {map[string]any{"local_file_path": "/home/me/a.txt", "content": "A"}, false, "a.txt=A"},
		"Windows":     {map[string]any{"local_file_path": `C:\me\b.txt`, "content_base64": "Qg=="}, false, "b.txt=B"},
		"Inside":      {map[string]any{"local_file_path": "c.txt", "content": "C", "dest_path": "/app/results/in/"}, false, "in/c.txt=C"},
		"Relative":    {map[string]any{"local_file_path": "d.txt", "content": "D", "dest_path": "in"}, false, "in/d.txt=D"},
		"Workspace":   {map[string]any{"local_file_path": "e.txt", "content": "E", "dest_path": "/workspace"}, false, "e.txt=E"},
		"Local":       {map[string]any{"local_file_path": "/home/me/in.csv"}, true, "in.csv=local"},
		"Outside":     {map[string]any{"local_file_path": "f.txt", "content": "F", "dest_path": "/etc"}, false, "/app/results"},
		"Lookalike":   {map[string]any{"local_file_path": "f.txt", "content": "F", "dest_path": "/app/resultsx"}, false, "/app/results"},
		"Up":          {map[string]any{"local_file_path": "f.txt", "content": "F", "dest_path": "../x"}, false, ".."},
		"NoName":      {map[string]any{"content": "F"}, false, "local_file_path"},
		"NameOfDots":  {map[string]any{"local_file_path": "a/..", "content": "F"}, false, "local_file_path"},
		"PathAlone":   {map[string]any{"local_file_path": "/etc/passwd"}, false, "content_base64"},
		"NotThere":    {map[string]any{"local_file_path": "/home/me/none"}, true, "no such file"},
		"Both":        {map[string]any{"local_file_path": "f", "content": "a", "content_base64": "Yg=="}, false, "not both"},
		"NoBase64":    {map[string]any{"local_file_path": "f", "content_base64": "?"}, false, "base64"},
		"NothingElse": {map[string]any{"local_file_path": nil}, false, "local_file_path"},
	} {
		b.env.Local = nil
		if test.local {
			b.env.Local = sandboxLocal{}
		}
		got, err := b.call("upload_file_to_sandbox", b.in(test.args))
		path, content, fine := strings.Cut(test.want, "=")
		message, _ := got["message"].(string)
		switch {
		case fine && (err != nil || got["success"] != true || b.farm.Written()[path] != content || !strings.Contains(message, "/app/results/"+path)):
			t.Errorf("%s: %v %v %v", name, got, err, b.farm.Written())
		case !fine && (farm.CodeOf(err) != farm.CodeInvalid || got["error"] != true || !strings.Contains(message, test.want)):
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
}
