package compat_test

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/compat"
	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

type notebookBundle struct {
	t    *testing.T
	farm *fakeFarm
	id   string
}

func setupNotebook(t *testing.T) *notebookBundle {
	t.Helper()
	b := &notebookBundle{t: t, farm: &fakeFarm{}}
	made, err := b.farm.CreateSandbox(t.Context(), wire.CreateRequest{}, time.Second)
	testbed.Must(t, err)
	b.id = made.Sandbox.ID
	return b
}

// call calls a tool and returns the text of its answer.
func (b *notebookBundle) call(tool string, args map[string]any) string {
	b.t.Helper()
	env := compat.Env{Farm: func(context.Context) compat.Farm { return b.farm }}
	reply, _ := toolsetNamed("notebook").Call(b.t.Context(), env, tool, args)
	if text, ok := reply.Value.(string); ok {
		return text
	}
	text, err := farm.Encode(reply.Value)
	testbed.Must(b.t, err)
	return string(text)
}

// Large displayed values are in memory together: beyond 16 MiB, and where this process has no memory for one, the answer has links.
func TestLargeDisplayedValuesAreBoundedTogether(t *testing.T) {
	t.Parallel()
	b := setupNotebook(t)
	var rich []wire.Rich
	for i := range 4 {
		rich = append(rich, wire.Rich{Display: i, Mime: "text/html", ArtifactID: strconv.Itoa(i), URL: "http://s/1"})
	}
	b.farm.ExecuteFunc = func(context.Context, wire.ExecuteRequest) wire.Job {
		return completed(&wire.Result{Execute: &wire.ExecuteResult{Results: rich}})
	}
	var limits []int64
	for name, c := range map[string]struct {
		sizes  []int64 // -1: there is no memory for it
		limits []int64
	}{
		"together": {[]int64{6 << 20, 10<<20 - 1, 2, 1}, []int64{16 << 20, 10 << 20, 1, 1}},
		"refused":  {[]int64{1, -1, 1, 1}, []int64{16 << 20, 16<<20 - 1, 0, 0}},
	} {
		limits = nil
		b.farm.ArtifactFunc = func(id string, limit int64) (mcp.Artifact, error) {
			limits = append(limits, limit)
			switch size := c.sizes[len(limits)-1]; {
			case size < 0:
				return mcp.Artifact{}, farm.Errorf(farm.CodeExhausted, "no memory for %s", id)
			case size > limit:
				return mcp.Artifact{}, nil
			default:
				return mcp.Artifact{Content: make([]byte, size)}, nil
			}
		}
		answer, err := compat.NewNotebook(&compat.Call{Farm: b.farm}).Execute(t.Context(), b.id, "x")
		testbed.Must(t, err)
		testbed.Diff(t, name+": values are read up to", c.limits, limits)
		for i, one := range answer.Results {
			size := c.sizes[i]
			if linked := one.URL != ""; linked != (size < 0 || size > c.limits[i]) {
				t.Errorf("%s: value %d is a link: %t", name, i, linked)
			}
		}
	}
}

// A text of control characters takes six times its bytes in the answer.
func TestEscapesOfADisplayedValueAreCharged(t *testing.T) {
	t.Parallel()
	const size = 10_000
	b := setupNotebook(t)
	b.farm.ExecuteFunc = func(context.Context, wire.ExecuteRequest) wire.Job {
		return completed(&wire.Result{Execute: &wire.ExecuteResult{Results: []wire.Rich{{Mime: "text/html", ArtifactID: "art_1", URL: "http://s/1"}}}})
	}
	b.farm.ArtifactFunc = func(string, int64) (mcp.Artifact, error) {
		return mcp.Artifact{Content: bytes.Repeat([]byte{1}, size)}, nil
	}
	ctx, hold := budget.New(0).With(t.Context(), "acme", 0)
	defer hold.Release()
	answer, err := compat.NewNotebook(&compat.Call{Farm: b.farm}).Execute(ctx, b.id, "x")
	testbed.Must(t, err)
	if len(answer.Results) != 1 || answer.Results[0].URL != "" || hold.Bytes() != 2*5*size {
		t.Errorf("%d bytes are charged: %.100v", hold.Bytes(), answer)
	}
}

func TestStoppedCodeIsNeverAnEmptySuccess(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		job  wire.Job
		want string
	}{
		"Value": {
			completed(&wire.Result{Execute: &wire.ExecuteResult{Stdout: "1\n", Results: []wire.Rich{{Mime: "text/plain", Data: "42"}}}}),
			`{"stdout":["1\n"],"stderr":[],"error":null,"results":[{"type":"text/plain","data":"42"}]}`,
		},
		"Exit": {
			completed(&wire.Result{Execute: &wire.ExecuteResult{ExitCode: 3}}),
			`{"stdout":[],"stderr":[],"error":{"name":"SystemExit","value":"3","traceback":["SystemExit: 3"]},"results":[]}`,
		},
		"KernelDied": {
			completed(&wire.Result{Execute: &wire.ExecuteResult{ExitCode: 137, Error: &wire.CodeError{Name: "OutOfMemory", Value: "Use less."}}}),
			`{"stdout":[],"stderr":[],"error":{"name":"OutOfMemory","value":"Use less.","traceback":["OutOfMemory: Use less."]},"results":[]}`,
		},
		"Colours": {
			completed(&wire.Result{Execute: &wire.ExecuteResult{Stdout: "\x1b[1;31mred\x1b[0m\n", Stderr: "\x1b[2Kgone\n"}}),
			`{"stdout":["red\n"],"stderr":["gone\n"],"error":null,"results":[]}`,
		},
		"CutStreams": {
			completed(&wire.Result{Execute: &wire.ExecuteResult{
				Stdout: "head … tail", Stderr: "all", Truncated: wire.Truncated{Stdout: true},
				Artifacts: []wire.Artifact{{Path: ".output/stderr.txt", URL: "http://no"}, {Path: ".output/stdout.txt", URL: "http://whole"}},
			}}),
			`{"stdout":["head … tail"],"stderr":["all"],"error":null,"results":[],"stdout_url":"http://whole"}`,
		},
		"Displayed": {
			completed(&wire.Result{Execute: &wire.ExecuteResult{Results: []wire.Rich{
				{Mime: "application/json", Data: "eyJhIjogWzEsIG51bGxdfQ=="},
				{Mime: "application/vnd.plotly.v1+json", Data: "W10="},
				{Mime: "image/svg+xml", Data: "PHN2Zy8+"},
				{Mime: "application/javascript", Data: "eD0x"},
				{Mime: "image/png", Data: "iVBORw=="},
				{Mime: "text/latex", Data: "$x$"},
			}}}),
			`{"stdout":[],"stderr":[],"error":null,"results":[{"type":"application/json","data":{"a":[1,null]}},{"type":"application/vnd.plotly.v1+json","data":[]},{"type":"image/svg+xml","data":"<svg/>"},` +
				`{"type":"application/javascript","data":"x=1"},{"type":"image/png","data":"iVBORw=="},{"type":"text/latex","data":"$x$"}]}`,
		},
		"TwoDisplayed": {
			completed(&wire.Result{Execute: &wire.ExecuteResult{Results: []wire.Rich{
				{Mime: "image/png", Data: "b2xk"}, {Mime: "text/plain", Data: "a"}, {Display: 1, Mime: "text/plain", Data: "b"}, {Mime: "image/png", Data: "bmV3"},
			}}}),
			`{"stdout":[],"stderr":[],"error":null,"results":[{"type":"image/png","data":"bmV3"},{"type":"text/plain","data":"a"},{"display":1,"type":"text/plain","data":"b"}]}`,
		},
		"TimedOut": {
			wire.Job{State: "timed_out", Timings: wire.Timings{RunMS: 3_600_000}, Result: &wire.Result{Execute: &wire.ExecuteResult{Stdout: "begun\n"}}},
			`{"stdout":["begun\n"],"stderr":[],"error":{"name":"TimeoutError","value":"the code was stopped after 3600 seconds","traceback":["TimeoutError: the code was stopped after 3600 seconds"]},"results":[]}`,
		},
		"Canceled": {
			wire.Job{State: "canceled"},
			`{"stdout":[],"stderr":[],"error":{"name":"KeyboardInterrupt","value":"the code was stopped","traceback":["KeyboardInterrupt: the code was stopped"]},"results":[]}`,
		},
		"Failed": {
			wire.Job{State: "failed", Error: &wire.JobError{Code: "unavailable", Message: "The node is gone."}},
			`Error calling execute_code. Status code: 503. Response: {"detail":"The node is gone."}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupNotebook(t)
			b.farm.ExecuteFunc = func(context.Context, wire.ExecuteRequest) wire.Job { return c.job }
			testbed.Diff(t, "", c.want, b.call("execute_code", map[string]any{"sandbox_id": b.id, "code": "x"}))
		})
	}
}

func TestToolsRefuseAsTheRoutesDo(t *testing.T) {
	t.Parallel()
	b := setupNotebook(t)
	gone := map[string]any{"sandbox_id": farm.NewID(farm.SandboxPrefix), "code": "1", "package_name": "six", "file_path": "x", "content": ""}
	for tool, names := range map[string][]string{
		"execute_code": {"code"}, "install_package": {"package_name"}, "upload_file": {"file_path", "content"}, "list_files": nil,
		"download_file": {"file_path"}, "close_sandbox": nil,
	} {
		args := map[string]any{"sandbox_id": gone["sandbox_id"]}
		for _, name := range names {
			args[name] = gone[name]
		}
		testbed.Diff(t, tool, "Error calling "+tool+`. Status code: 404. Response: {"detail":"Sandbox not found"}`, b.call(tool, args))
	}
	for name, c := range map[string]struct {
		tool string
		args map[string]any
		want string
	}{
		"NoCode":   {"execute_code", map[string]any{"sandbox_id": b.id}, "Status code: 422"},
		"Outside":  {"download_file", map[string]any{"sandbox_id": b.id, "file_path": "../x"}, `Status code: 403. Response: {"detail":"File access denied"}`},
		"NoFile":   {"download_file", map[string]any{"sandbox_id": b.id, "file_path": "x"}, `Status code: 404. Response: {"detail":"File not found"}`},
		"NoUpload": {"upload_file", map[string]any{"sandbox_id": b.id, "file_path": "x"}, "content_base64"},
		"Folder":   {"upload_file", map[string]any{"sandbox_id": b.id, "file_path": "in/", "content": ""}, "Field required"},
		"Local":    {"upload_file", map[string]any{"sandbox_id": b.id, "local_file_path": "/etc/passwd"}, "content_base64"},
		"Both":     {"upload_file", map[string]any{"sandbox_id": b.id, "file_path": "x", "content": "", "content_base64": ""}, "not both"},
	} {
		if got := b.call(c.tool, c.args); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestToolsMoveFiles(t *testing.T) {
	t.Parallel()
	b := setupNotebook(t)
	for name, args := range map[string]map[string]any{
		"in/a.txt": {"file_path": "in/a.txt", "content": "第一行\n"}, "b.bin": {"file_path": "/workspace/b.bin", "content_base64": "AP8="},
		"in/c.txt": {"file_path": "in/", "local_file_path": `C:\c.txt`, "content": "c"}, "d.txt": {"file_path": "in/../d.txt", "content": "d"},
	} {
		args["sandbox_id"] = b.id
		testbed.Diff(t, name, `{"file_path":"`+name+`"}`, b.call("upload_file", args))
	}
	testbed.Diff(t, "", map[string]string{"in/a.txt": "第一行\n", "b.bin": "\x00\xff", "in/c.txt": "c", "d.txt": "d"}, b.farm.Written())
}

func TestAFailedInstallIsANormalAnswer(t *testing.T) {
	t.Parallel()
	b := setupNotebook(t)
	b.farm.InstallFunc = func(_ context.Context, r wire.PackagesRequest) (wire.Job, error) {
		if strings.HasPrefix(r.Packages[0], "-") {
			return wire.Job{}, farm.Invalidf("packages[0] is no name")
		}
		return completed(&wire.Result{Install: &wire.InstallResult{Stderr: "log", Packages: []wire.InstalledOne{{Name: r.Packages[0], Status: "failed", Message: "It is not in the index."}}}}), nil
	}
	for name, want := range map[string]string{
		"nope":           `{"success":false,"stdout":"","stderr":"log","message":"Failed to install nope. It is not in the index."}`,
		"-r/etc/passwd_": `{"success":false,"stdout":"","stderr":"packages[0] is no name","message":"Failed to install: packages[0] is no name"}`,
	} {
		testbed.Diff(t, name, want, b.call("install_package", map[string]any{"sandbox_id": b.id, "package_name": name}))
	}
}
