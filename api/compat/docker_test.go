package compat_test

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/compat"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// dockerFarm records requests: tars, commands and sandboxes. It has as many GPUs as gpus says.
type dockerFarm struct {
	*fakeFarm
	mu       sync.Mutex
	members  []string
	commands []wire.CommandRequest
	gpus     int
	room     int                      // MiB of its largest node; 0: enough
	given    []*wire.ResourcesRequest // of the sandboxes
}

// CreateSandbox refuses GPUs as a farm without GPUs does.
func (f *dockerFarm) CreateSandbox(ctx context.Context, r wire.CreateRequest, wait time.Duration) (wire.Created, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.GPU != nil && f.gpus == 0 {
		return wire.Created{}, farm.Invalidf("no worker of this farm offers a GPU")
	}
	if r.Image != nil && *r.Image != "node" {
		return wire.Created{}, farm.Invalidf("image %q is not offered", *r.Image)
	}
	if r.Resources != nil && f.room > 0 && *r.Resources.MemoryMB > f.room {
		return wire.Created{}, farm.Invalidf("no node has so much")
	}
	f.given = append(f.given, r.Resources)
	made, err := f.fakeFarm.CreateSandbox(ctx, r, wait)
	if r.GPU != nil {
		made.Sandbox.GPU = &wire.GPU{Count: *r.GPU.Count, Model: r.GPU.Model}
	}
	return made, err
}

// WriteTar records the members.
func (f *dockerFarm) WriteTar(_ context.Context, _, dir string, from io.Reader, _ int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members = nil
	for members := tar.NewReader(from); ; {
		member, err := members.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return farm.Wrap(err, farm.CodeInvalid, "the body ended before it was complete")
		}
		text, err := io.ReadAll(members)
		if err != nil {
			return err
		}
		f.members = append(f.members, fmt.Sprintf("%s %s %o %s", dir, member.Name, member.Mode, text))
	}
}

type dockerBundle struct {
	t    *testing.T
	farm *dockerFarm
	set  *compat.Toolset
	env  compat.Env
	made map[string]any
}

func setupDocker(t *testing.T) *dockerBundle {
	t.Helper()
	b := &dockerBundle{t: t, farm: &dockerFarm{fakeFarm: &fakeFarm{}}, set: toolsetNamed("docker-sandbox")}
	b.farm.CommandFunc = func(_ context.Context, r wire.CommandRequest) wire.Job {
		b.farm.mu.Lock()
		defer b.farm.mu.Unlock()
		b.farm.commands = append(b.farm.commands, r)
		out := &wire.CommandResult{}
		commands := r.Commands
		if r.Command != nil {
			commands = []string{*r.Command}
		}
		for _, command := range commands {
			one := wire.CommandOutcome{Command: command, Stdout: command + "\n"}
			if command == "false" {
				one.ExitCode = 4
			}
			if out.Results = append(out.Results, one); one.ExitCode != 0 {
				break
			}
		}
		if r.AutoInstall {
			out.Installed = []wire.InstalledOne{{Name: "six", Version: "1.17.0", Status: "installed", Why: "imported as six"}}
		}
		return completed(&wire.Result{Command: out})
	}
	b.env = compat.Env{Farm: func(context.Context) compat.Farm { return b.farm }}
	b.made = b.call("sandbox_initialize", nil)
	return b
}

// call calls a tool in the bundle's workspace and returns its answer, decoded from JSON.
func (b *dockerBundle) call(tool string, args map[string]any) map[string]any {
	b.t.Helper()
	given := map[string]any{}
	if b.made != nil && tool != "sandbox_initialize" {
		given["container_id"], given["workspace_id"] = b.made["container_id"], b.made["workspace_id"]
	}
	for name, value := range args {
		given[name] = value
	}
	for _, name := range []string{"sandbox_stop", "get_container_logs"} {
		if tool == name {
			delete(given, "workspace_id")
		}
	}
	var decoded any // as it comes over the wire
	text, err := json.Marshal(given)
	err = errors.Join(err, json.Unmarshal(text, &decoded))
	testbed.Must(b.t, err)
	reply, _ := b.set.Call(b.t.Context(), b.env, tool, decoded)
	text, err = farm.Encode(reply.Value)
	testbed.Must(b.t, err)
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil {
		b.t.Fatalf("%s: %v in %s", tool, err, text)
	}
	return out
}

func (b *dockerBundle) refused(tool string, args map[string]any, words ...string) {
	b.t.Helper()
	out := b.call(tool, args)
	text, _ := out["error"].(string)
	if out["success"] != false || text == "" || slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) }) {
		b.t.Errorf("%s %v: %v", tool, args, out)
	}
}

func TestInitializeCreatesASeparateWorkspace(t *testing.T) {
	t.Parallel()
	b := setupDocker(t)
	other := b.call("sandbox_initialize", map[string]any{"image": "there-is-none:1"})
	for _, made := range []map[string]any{b.made, other} {
		id, _ := made["workspace_id"].(string)
		if made["success"] != true || made["mode"] != "persistent" || made["device"] != "cpu" || made["workspace_path"] != "/app/workspaces/"+id || len(id) != 36 {
			t.Errorf("made %v", made)
		}
	}
	if b.made["container_id"] == other["container_id"] || b.made["workspace_id"] == other["workspace_id"] {
		t.Errorf("%v and %v are one", b.made, other)
	}
	alone := b.call("sandbox_initialize", map[string]any{"use_persistent": false, "image": "python:3.9-slim"})
	if _, there := alone["workspace_id"]; there || alone["mode"] != "standalone" || alone["success"] != true {
		t.Errorf("alone %v", alone)
	}
	b.refused("sandbox_initialize", map[string]any{"use_persistent": false, "image": "there-is-none:1"}, "there-is-none:1")
}

func TestInitializeTakesAGPUIfThereIsOne(t *testing.T) {
	t.Parallel()
	b := setupDocker(t)
	b.farm.gpus = 1
	if made := b.call("sandbox_initialize", nil); made["device"] != "gpu" {
		t.Errorf("made %v", made)
	}
}

// Hundreds of jobs of one call counted as one request.
func TestEachJobOfAnExecCounts(t *testing.T) {
	t.Parallel()
	b := setupDocker(t)
	left := 2
	b.env.More = func(context.Context) error {
		if left--; left < 0 {
			return farm.Errorf(farm.CodeExhausted, "The quota is used up.")
		}
		return nil
	}
	before := len(b.farm.commands)
	out := b.call("sandbox_exec", map[string]any{"commands": []string{"python a.py", "python b.py", "python c.py", "python d.py", "python e.py"}})
	results, _ := out["results"].([]any)
	notes := fmt.Sprint(out["notes"])
	if len(b.farm.commands)-before != 3 || len(results) != 3 || !strings.Contains(notes, "python d.py") || !strings.Contains(notes, "The quota is used up.") {
		t.Errorf("%d jobs were started, said %v", len(b.farm.commands)-before, out)
	}
}

// A call of 300 commands, each with a megabyte of output, held all of it.
func TestTheResultsOfAnExecAreBounded(t *testing.T) {
	t.Parallel()
	const limit, each = 8 << 20, 256 // bytes of an answer, and of a result beside its texts
	const escaped = "\x01"           // six bytes in JSON
	for size, jobs := range map[int]int{limit - 1: 2, limit: 2, limit + 1: 1} {
		b := setupDocker(t)
		ran := 0
		b.farm.CommandFunc = func(context.Context, wire.CommandRequest) wire.Job {
			ran++
			return completed(&wire.Result{Command: &wire.CommandResult{Results: []wire.CommandOutcome{{Stdout: strings.Repeat("y", size-each-6) + escaped}}}})
		}
		out := b.call("sandbox_exec", map[string]any{"commands": []string{"python a.py", "python b.py"}})
		results, _ := out["results"].([]any)
		notes := fmt.Sprint(out["notes"])
		if ran != jobs || len(results) != jobs || out["success"] != true || strings.Contains(notes, "from python b.py on were not run") != (jobs == 1) {
			t.Errorf("%d bytes: %d jobs were run, with %d results and %s", size, ran, len(results), notes)
		}
	}
}

// The results of the jobs before stay charged while the next one runs, whose submit gives back what the request was charged for.
func TestTheResultsOfAnExecStayCharged(t *testing.T) {
	t.Parallel()
	const size, each = 1 << 20, 1<<20 + 256 // of a result, alone and as it is counted
	for name, c := range map[string]struct {
		memory, lacks int64 // bytes of the budget, and the job that reads no result for lack of memory
		held          []int64
		note          string
	}{
		"Kept":   {1 << 30, -1, []int64{0, 4 * each, 8 * each, 12 * each}, "[]"},
		"NoRoom": {16 << 20, -1, []int64{0, 4 * each}, "from python 2.py on were not run: This server has no memory"}, // a share of 7 MiB
		"Unread": {1 << 30, 2, []int64{0, 4 * each, 8 * each}, "no result of the commands from python 2.py on: none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupDocker(t)
			memory := budget.New(c.memory)
			ctx, hold := memory.With(t.Context(), "acme", 0)
			var held []int64
			b.farm.CommandFunc = func(ctx context.Context, _ wire.CommandRequest) wire.Job {
				budget.Keep(ctx, 0) // as the farm's submit does
				held = append(held, memory.Stats().Used)
				testbed.Must(t, budget.Charge(ctx, 6*size))
				return completed(&wire.Result{Command: &wire.CommandResult{Results: []wire.CommandOutcome{{Stdout: strings.Repeat("y", size)}}}})
			}
			b.env.Farm = func(context.Context) compat.Farm { return unread{b.farm, &held, c.lacks} }
			reply, err := b.set.Call(ctx, b.env, "sandbox_exec", map[string]any{
				"container_id": b.made["container_id"], "commands": []any{"python 0.py", "python 1.py", "python 2.py", "python 3.py"},
			})
			testbed.Must(t, err)
			testbed.Diff(t, "held when the jobs began", c.held, held)
			text, err := farm.Encode(reply.Value)
			testbed.Must(t, err)
			var said struct {
				Results []any
				Notes   []string
				Success bool
			}
			testbed.Must(t, json.Unmarshal(text, &said))
			testbed.Check(t, said.Success == (c.lacks < 0), "a result is lost, and it is a success: %v", said.Success)
			if !strings.Contains(fmt.Sprint(said.Notes), c.note) {
				t.Errorf("notes: %s", said.Notes)
			}
			want := min(int64(len(said.Results))*each*budget.BodyWeight, memory.Share())
			if used := memory.Stats().Used; hold.Bytes() != used || used < want {
				t.Errorf("%d bytes are held while the answer is encoded, %d by the request, want at least %d", used, hold.Bytes(), want)
			}
			hold.Release()
		})
	}
}

// unread is a farm that has no memory for the result of one command.
type unread struct {
	compat.Farm
	begun *[]int64
	at    int64
}

func (f unread) Command(ctx context.Context, id string, r wire.CommandRequest, wait time.Duration) (wire.Job, error) {
	job, err := f.Farm.Command(ctx, id, r, wait)
	if err == nil && int64(len(*f.begun))-1 == f.at {
		return wire.Job{}, farm.Errorf(farm.CodeExhausted, "none")
	}
	return job, err
}

func TestExecStartsAJobForEachProgram(t *testing.T) {
	t.Parallel()
	b := setupDocker(t)
	before := len(b.farm.commands)
	out := b.call("sandbox_exec", map[string]any{"commands": []string{"ls", "", "python a.py", "echo 1", "python b.py", "false", "echo never", "python c.py"}})
	var ran [][]string
	var auto []bool
	for _, r := range b.farm.commands[before:] {
		ran, auto = append(ran, r.Commands), append(auto, r.AutoInstall)
	}
	want := [][]string{{"ls", ":"}, {"python a.py", "echo 1"}, {"python b.py", "false", "echo never"}}
	if diff := cmp.Diff(want, ran) + cmp.Diff([]bool{false, true, true}, auto); diff != "" {
		t.Error(diff)
	}
	results, _ := out["results"].([]any)
	last, _ := results[len(results)-1].(map[string]any)
	if out["success"] != true || len(results) != 6 || last["command"] != "false" || last["exit_code"] != 4.0 || last["success"] != false || results[1].(map[string]any)["command"] != "" {
		t.Errorf("said %v", out)
	}
	if installed, _ := out["installed"].([]any); len(installed) != 2 {
		t.Errorf("installed %v", installed)
	}
	testbed.Diff(t, "", map[string]any{"success": true, "results": []any{}}, b.call("sandbox_exec", map[string]any{"commands": []string{}}))
}

func TestExecThatIsStoppedNamesTheCommand(t *testing.T) {
	t.Parallel()
	b := setupDocker(t)
	b.farm.CommandFunc = func(context.Context, wire.CommandRequest) wire.Job {
		job := completed(&wire.Result{Command: &wire.CommandResult{Results: []wire.CommandOutcome{{Command: "a"}}}})
		job.State = "timed_out"
		return job
	}
	out := b.call("sandbox_exec", map[string]any{"commands": []string{"a", "sleep 9999", "b"}})
	results, _ := out["results"].([]any)
	if len(results) != 2 || results[1].(map[string]any)["exit_code"] != 137.0 || !strings.Contains(results[1].(map[string]any)["stderr"].(string), "timed out") {
		t.Errorf("said %v", out)
	}
}

// The notes of the farm name routes and fields of its API; here are commands and files.
func TestNotesOfAnExecNameItsTools(t *testing.T) {
	t.Parallel()
	b := setupDocker(t)
	b.farm.CommandFunc = func(context.Context, wire.CommandRequest) wire.Job {
		job := completed(&wire.Result{Command: &wire.CommandResult{Notes: []string{
			"Install it (" + farm.InstallRouteOf("sbx_1") + ")" + farm.OrAutoInstall + ".", "Install it (" + farm.InstallRouteOf("sbx_1") + " with manager npm).",
			"No file: upload it first " + farm.UploadWays + ".", "No input." + farm.AskElsewhere, "Start fewer" + farm.MorePIDs + ".",
		}}})
		job.SandboxID = "sbx_1"
		return job
	}
	want := []any{
		"Install it (pip install in a command).", "Install it (npm install in a command).", "No file: upload it first (write_file_sandbox).", "No input.", "Start fewer.",
	}
	testbed.Diff(t, "notes", want, b.call("sandbox_exec", map[string]any{"commands": []string{"a"}})["notes"].([]any))
}

func TestStopKeepsAPersistentSandboxAndCleanClosesIt(t *testing.T) {
	t.Parallel()
	b := setupDocker(t)
	for _, args := range []map[string]any{nil, {"is_persistent": true}, {"is_persistent": false}} {
		if out := b.call("sandbox_stop", args); out["success"] != true || out["message"] == "" {
			t.Errorf("stop: %v", out)
		}
		if out := b.call("get_container_logs", nil); out["success"] != true || !strings.Contains(out["logs"].(string), "ready") {
			t.Errorf("logs: %v", out)
		}
	}
	for _, id := range []string{"../..", "", "/", "x; touch y", "11111111-2222-3333-4444-555555555555"} {
		for tool, more := range map[string]map[string]any{
			"clean_workspace": {}, "sandbox_exec": {"commands": []string{"true"}}, "write_file_sandbox": {"file_name": "f", "file_contents": ""},
		} {
			more["workspace_id"] = id
			b.refused(tool, more, "sandbox_initialize")
		}
	}
	if out := b.call("clean_workspace", nil); out["success"] != true || !strings.Contains(out["message"].(string), b.made["workspace_id"].(string)) {
		t.Errorf("clean: %v", out)
	}
	for tool, more := range map[string]map[string]any{
		"sandbox_exec": {"commands": []string{"true"}}, "sandbox_stop": {}, "get_container_logs": {}, "clean_workspace": {},
		"copy_project": {"local_src_dir": "p", "content": map[string]any{}}, "copy_file_from_sandbox": {"container_src_path": "f"},
	} {
		b.refused(tool, more)
	}
	b.made = b.call("sandbox_initialize", map[string]any{"use_persistent": false})
	b.made["workspace_id"] = nil
	b.call("sandbox_stop", nil)
	b.refused("get_container_logs", nil)
}

// leaving is a farm whose caller leaves while a sandbox is made, or while its job is awaited.
type leaving struct {
	*fakeFarm
	made *int
}

func (f leaving) CreateSandbox(ctx context.Context, r wire.CreateRequest, wait time.Duration) (wire.Created, error) {
	made, err := f.fakeFarm.CreateSandbox(ctx, r, wait)
	*f.made++
	made.Job.State = string(farm.JobQueued)
	if wait > 0 {
		return wire.Created{Sandbox: wire.Sandbox{ID: made.Sandbox.ID}}, farm.Errorf(farm.CodeUnavailable, "The request ended before its job.")
	}
	return made, err
}

// Nobody knows the id of such a sandbox, which had no idle limit: it was there for a day, with a GPU if one was free.
func TestASandboxWhoseCallerHasLeftIsClosed(t *testing.T) {
	t.Parallel()
	for set, tool := range map[string]string{"docker-sandbox": "sandbox_initialize", "notebook": "create_sandbox", "python-env": "create_python_env"} {
		f := leaving{&fakeFarm{JobFunc: func(context.Context, string, time.Duration) (wire.Job, error) {
			return wire.Job{}, farm.Errorf(farm.CodeUnavailable, "The request ended before its job.")
		}}, new(int)}
		_, err := toolsetNamed(set).Call(t.Context(), compat.Env{Farm: func(context.Context) compat.Farm { return f }}, tool, nil)
		if open, _ := f.Sandboxes(t.Context()); farm.CodeOf(err) != farm.CodeUnavailable || *f.made != 1 || len(open) != 0 {
			t.Errorf("%s: %d sandboxes were made, %d are open: %v", set, *f.made, len(open), err)
		}
	}
	b := setupDocker(t)
	b.farm.JobFunc = func(context.Context, string, time.Duration) (wire.Job, error) {
		return wire.Job{}, farm.Errorf(farm.CodeUnavailable, "The request ended before its job.")
	}
	b.env.Farm = func(context.Context) compat.Farm { return slow{b.farm} }
	b.refused("sandbox_initialize", nil, "ended before")
	if open, _ := b.farm.Sandboxes(t.Context()); len(open) != 1 { // that of setupDocker
		t.Errorf("%d sandboxes are open", len(open))
	}
}

// slow is a farm without GPUs that makes sandboxes later.
type slow struct{ *dockerFarm }

func (f slow) CreateSandbox(ctx context.Context, r wire.CreateRequest, wait time.Duration) (wire.Created, error) {
	made, err := f.dockerFarm.CreateSandbox(ctx, r, wait)
	made.Job.State = string(farm.JobQueued)
	return made, err
}

// A workspace gets enough memory for large packages if a node has it, with a GPU or without.
func TestInitializeReservesMemoryIfANodeHasIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		room, gpus, want int // want 0: the farm's default
		device           string
	}{
		"enough":                   {0, 0, 4096, "cpu"},
		"just enough":              {4096, 0, 4096, "cpu"},
		"too little":               {4095, 0, 0, "cpu"},
		"enough and a GPU":         {0, 1, 4096, "gpu"},
		"a GPU where it is scarce": {2048, 1, 0, "gpu"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupDocker(t)
			b.farm.room, b.farm.gpus, b.farm.given = c.room, c.gpus, nil
			if made := b.call("sandbox_initialize", nil); made["success"] != true || made["device"] != c.device {
				t.Fatalf("made = %v", made)
			}
			got := 0
			if len(b.farm.given) == 1 && b.farm.given[0] != nil {
				got = *b.farm.given[0].MemoryMB
			}
			if len(b.farm.given) != 1 || got != c.want {
				t.Errorf("%d sandboxes were made; MiB = %d, want %d", len(b.farm.given), got, c.want)
			}
		})
	}
}
