package mcp_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	protocol "github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func python(b *bundle, more map[string]any) *protocol.CallToolResult {
	b.t.Helper()
	args := map[string]any{"sandbox_id": "sbx_1", "code": "1"}
	for k, v := range more {
		args[k] = v
	}
	return b.call("execute_python_code", args)
}

// artifact is an artifact with its content, as made by a run.
func artifact(name, kind string, content []byte) mcp.Artifact {
	sum := sha256.Sum256(content)
	return mcp.Artifact{Content: content, Artifact: wire.Artifact{
		ID: "art_" + name, Name: name, Path: "out/" + name, Size: int64(len(content)), ContentType: kind,
		SHA256: hex.EncodeToString(sum[:]), URL: "http://store.test/" + name,
	}}
}

// withArtifacts adds artifacts to a farm and to the result.
func withArtifacts(r wire.ExecuteResult, list ...mcp.Artifact) *fakeFarm {
	for _, a := range list {
		r.Artifacts = append(r.Artifacts, a.Artifact)
	}
	f := executed(r)
	f.ArtifactFunc = func(_ context.Context, id string, limit int64) (mcp.Artifact, error) {
		for _, a := range list {
			if a.ID == id {
				if a.Size > limit {
					a.Content = nil
				}
				return a, nil
			}
		}
		return mcp.Artifact{}, none("artifact", id)
	}
	return f
}

func TestRunReportsDroppedOutput(t *testing.T) {
	t.Parallel()
	b := setup(t, withArtifacts(wire.ExecuteResult{Stdout: "kept", DroppedBytes: wire.DroppedBytes{Stdout: 5}}))
	got, _ := python(b, nil).StructuredContent.(map[string]any)
	if diff := cmp.Diff(map[string]any{"stdout": 5.0, "stderr": 0.0}, got["dropped_bytes"]); diff != "" {
		t.Error(diff)
	}
}

func TestRunPassesOnOutputLimit(t *testing.T) {
	t.Parallel()
	f := withArtifacts(wire.ExecuteResult{})
	var got []*string
	execute := f.ExecuteFunc
	f.ExecuteFunc = func(ctx context.Context, id string, r wire.ExecuteRequest, wait time.Duration) (wire.Job, error) {
		got = append(got, r.OnOutputLimit)
		return execute(ctx, id, r, wait)
	}
	b := setup(t, f)
	python(b, nil)
	python(b, map[string]any{"on_output_limit": "stop"})
	if diff := cmp.Diff([]*string{nil, new("stop")}, got); diff != "" {
		t.Error(diff)
	}
	if r := python(b, map[string]any{"on_output_limit": "pause"}); !r.IsError {
		t.Error("a wrong value was accepted")
	}
}

// The notes of the farm name fields and routes of its API; a model has tools.
func TestNotesNameTools(t *testing.T) {
	t.Parallel()
	const install = "It is missing: install it (POST /v1/sandboxes/sbx_1/packages)"
	notes := []string{
		install + farm.OrAutoInstall + ".", "Not there (POST /v1/sandboxes/sbx_1/packages with manager npm).", "The code sees: " + farm.SendFile + "upload it first " + farm.UploadWays + ".",
		"No input." + farm.AskElsewhere, "Start fewer" + farm.MorePIDs + ".", "Add a host" + farm.AllowLater + "; no.", farm.AllowMore, "Restart it (POST /v1/sandboxes/sbx_1/restart).",
	}
	want := []string{
		"It is missing: install it (install_packages_in_sandbox), or run with auto_install.", "Not there (install_packages_in_sandbox with manager npm).", "The code sees: upload it first (upload_file_to_sandbox).",
		"No input.", "Start fewer.", "Add a host (create_sandbox); no.", "Create a sandbox with other allow_hosts for another host.", "Restart it (restart_kernel).",
	}
	b := setup(t, withArtifacts(wire.ExecuteResult{Notes: notes, Installed: []wire.InstalledOne{{Name: "a", Version: "1", Status: "installed"}, {Name: "b", Status: "failed", Message: "b: GET /v1/sandboxes/sbx_1/packages lists what is installed."}}}))
	if text := textOf(python(b, nil)); !strings.Contains(text, "\npackage a 1: installed\npackage b: failed: b: check_package_status says whether it is installed.\nnote: "+strings.Join(want, "\nnote: ")+"\n") {
		t.Errorf("the text is\n%s", text)
	}
	b = setup(t, &fakeFarm{CommandFunc: func(context.Context, string, wire.CommandRequest, time.Duration) (wire.Job, error) {
		return wire.Job{ID: "job_1", State: "completed", Kind: "command", Result: &wire.Result{Command: &wire.CommandResult{Notes: notes[:1]}}}, nil
	}})
	r := b.call("execute_terminal_command", map[string]any{"sandbox_id": "sbx_1", "command": "x"}) // which has no auto_install
	if got, _ := r.StructuredContent.(map[string]any); got["message"] != "It is missing: install it (install_packages_in_sandbox)." {
		t.Errorf("the message is %q", got["message"])
	}
}

// A request without a network raised an error with three causes and 16 frames of libraries: twice 9 KB for a model.
func TestALongTracebackHasNoFramesOfLibraries(t *testing.T) {
	t.Parallel()
	read := func() *wire.CodeError {
		content, err := os.ReadFile("testdata/unreached.json")
		testbed.Must(t, err)
		e := &wire.CodeError{}
		testbed.Must(t, json.Unmarshal(content, e))
		return e
	}
	network := "A host was not reached: " + strings.Repeat("x", 276)
	job := func() wire.Job {
		return wire.Job{ID: "job_1", SandboxID: "sbx_1", Kind: "execute", State: "completed", Result: &wire.Result{Execute: &wire.ExecuteResult{ExitCode: 1, Error: read(), Notes: []string{network}}}}
	}
	b := setup(t, &fakeFarm{
		ExecuteFunc: func(context.Context, string, wire.ExecuteRequest, time.Duration) (wire.Job, error) { return job(), nil },
		JobFunc:     func(context.Context, string, time.Duration) (wire.Job, error) { return job(), nil },
	})
	r := python(b, nil)
	structured, err := json.Marshal(r.StructuredContent)
	testbed.Must(t, err)
	text := textOf(r)
	testbed.Check(t, len(text) <= 2500 && len(structured) <= 2500, "%d and %d bytes:\n%s\n%s", len(text), len(structured), text, structured)
	for _, want := range []string{
		"gaierror: [Errno -3] Temporary failure in name resolution\n", "MaxRetryError: HTTPS", "\nConnectionError: HTTPS", "----> 4 get('https://example.com/x')", "----> 3     return requests.get(u)",
		"File /workspace/own.py:1", "note: " + network, "note: The traceback lacks 17 frames of libraries, which get_job_result with this job_id has.",
	} {
		testbed.Check(t, strings.Contains(text, want), "the text lacks %q:\n%s", want, text)
	}
	testbed.Check(t, !strings.Contains(text, "site-packages") && !strings.Contains(string(structured), "site-packages"), "frames of libraries are left:\n%s", text)
	testbed.Check(t, strings.Count(text, "Traceback (most recent") == 1, "heads of errors without frames are left:\n%s", text)
	whole, _ := b.call("get_job_result", map[string]any{"job_id": "job_1"}).StructuredContent.(map[string]any)["error"].(map[string]any)
	if got, _ := whole["traceback"].([]any); len(got) != len(read().Traceback) {
		t.Errorf("the job has %d parts, want %d", len(got), len(read().Traceback))
	}
	own := []string{"File /tmp/own.py:1, in a()", "File ~/own.py:2, in b()", "File <string>:3", "File /workspace/a.py:4, in c()"}
	libraries := []string{"File ~/.packages/six.py:1, in d()", "File /usr/lib/python3.13/a.py:1, in e()", "File /usr/lib/python3/dist-packages/a.py:1", "File <frozen importlib._bootstrap>:1, in f()"}
	e := &wire.CodeError{Name: "E", Value: "e", Traceback: slices.Concat([]string{"E    Traceback (most recent call last)"}, own, libraries, []string{"E: e", strings.Repeat("x", 2000)})}
	text = textOf(python(setup(t, withArtifacts(wire.ExecuteResult{Error: e})), nil))
	for _, frame := range own {
		testbed.Check(t, strings.Contains(text, frame), "the frame %q of the caller's is left out:\n%s", frame, text)
	}
	for _, frame := range libraries {
		testbed.Check(t, !strings.Contains(text, frame), "the frame %q of a library is left:\n%s", frame, text)
	}
	few := &wire.CodeError{Name: "E", Value: "e", Traceback: []string{"E    Traceback (most recent call last)", "File /usr/lib/python3.13/a.py:1, in a()\n" + strings.Repeat("x", 1850), "E: e"}}
	if text := textOf(python(setup(t, withArtifacts(wire.ExecuteResult{Error: few})), nil)); !strings.Contains(text, "File /usr/lib") {
		t.Errorf("a short traceback was cut:\n%s", text)
	}
}

func TestRunReportsEverything(t *testing.T) {
	t.Parallel()
	b := setup(t, withArtifacts(wire.ExecuteResult{
		Stdout: "so far\n", Stderr: "careful\n", ExitCode: 1, KernelRestarted: true, ArtifactsSkipped: 2,
		Error:     &wire.CodeError{Name: "IndexError", Value: "list index out of range", Traceback: []string{"Traceback", "  line 2"}},
		Results:   []wire.Rich{{Mime: "text/plain", Data: "40"}, {Mime: "text/html", Data: "<b>40</b>"}},
		Installed: []wire.InstalledOne{{Name: "humanize", Version: "4.9", Status: "installed", Why: "imported by the code"}},
		Notes:     []string{"A note."},
	}, artifact("a.csv", "text/csv", []byte("x,y\n"))))
	r := python(b, nil)
	for _, want := range []string{
		"job_1", "sbx_1", "completed", "exit code: 1", "so far", "careful", "IndexError: list index out of range", "line 2", "40", "was restarted",
		"humanize", "A note.", "out/a.csv (text/csv, 4 bytes)\n", "download_file", "2 more files",
	} {
		if !strings.Contains(textOf(r), want) {
			t.Errorf("the text lacks %q:\n%s", want, textOf(r))
		}
	}
	if strings.Contains(textOf(r), "<b>") {
		t.Error("the text has the value twice")
	}
	if whole, err := json.Marshal(r); err != nil || strings.Count(string(whole), "http://store.test/a.csv") != 1 {
		t.Errorf("the answer does not have the presigned link once: %v %s", err, whole)
	}
	want := map[string]any{
		"job_id": "job_1", "sandbox_id": "sbx_1", "state": "completed", "stdout": "so far\n", "stderr": "careful\n", "exit_code": 1.0,
		"error":     map[string]any{"name": "IndexError", "value": "list index out of range", "traceback": []any{"Traceback", "  line 2"}},
		"results":   []any{map[string]any{"display": 0.0, "mime": "text/plain", "data": "40"}, map[string]any{"display": 0.0, "mime": "text/html", "data": "<b>40</b>"}},
		"truncated": map[string]any{"stdout": false, "stderr": false}, "kernel_restarted": true, "message": "A note.",
		"installed": []any{map[string]any{"name": "humanize", "requested": "", "status": "installed", "version": "4.9", "message": "imported by the code"}},
		"artifacts": []any{map[string]any{
			"id": "art_a.csv", "name": "a.csv", "path": "out/a.csv", "size": 4.0, "content_type": "text/csv", "url": "http://store.test/a.csv",
			"sha256": artifact("a.csv", "text/csv", []byte("x,y\n")).SHA256,
		}},
	}
	if diff := cmp.Diff(want, r.StructuredContent); diff != "" {
		t.Error(diff)
	}
	links := blocksOf[protocol.ResourceLink](r)
	if len(links) != 1 || links[0].URI != "sandfarm://artifacts/art_a.csv" || links[0].Name != "a.csv" || links[0].MIMEType != "text/csv" || *links[0].Size != 4 {
		t.Errorf("links are %+v", links)
	}
}

// A job's result outlives its sandbox, where download_file fails.
func TestAResultSaysHowToGetFilesOfAClosedSandbox(t *testing.T) {
	t.Parallel()
	result := &wire.ExecuteResult{}
	b := setup(t, &fakeFarm{JobFunc: func(_ context.Context, id string, _ time.Duration) (wire.Job, error) {
		return wire.Job{ID: id, Kind: "execute", SandboxID: "sbx_1", State: "completed", Result: &wire.Result{Execute: result}}, nil
	}})
	for _, files := range []int{0, 1} {
		result.Artifacts = []wire.Artifact{artifact("a.csv", "text/csv", nil).Artifact}[:files]
		r := b.call("get_job_result", map[string]any{"job_id": "job_1"})
		if strings.Contains(textOf(r), "If the sandbox is closed, use an artifact's url") != (files > 0) {
			t.Errorf("%d files: %s", files, textOf(r))
		}
	}
}

// A traceback says the exception itself, and begins with a ruler that says nothing.
func TestExceptionIsToldOnce(t *testing.T) {
	t.Parallel()
	e := &wire.CodeError{Name: "IndexError", Value: "out of range", Traceback: []string{"-----", "line 1", "IndexError: out of range"}}
	r := python(setup(t, executed(wire.ExecuteResult{ExitCode: 1, Error: e})), nil)
	if text := textOf(r); strings.Count(text, "IndexError: out of range") != 1 || strings.Contains(text, "---") || !strings.Contains(text, "line 1") {
		t.Error(text)
	}
	if got := field(t, r, "error").(map[string]any)["traceback"].([]any); len(got) != 3 {
		t.Errorf("the structured traceback is %v", got)
	}
}

func TestCommandHasNoResults(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{CommandFunc: func(_ context.Context, id string, r wire.CommandRequest, wait time.Duration) (wire.Job, error) {
		if *r.Command != "false" || r.Cwd != "in" || *r.TimeoutSeconds != 7 || wait != 3*time.Second {
			return wire.Job{}, farm.Invalidf("request is %+v, %s", r, wait)
		}
		return wire.Job{ID: "job_1", Kind: "command", SandboxID: id, State: "completed", Result: &wire.Result{Command: &wire.CommandResult{
			Results: []wire.CommandOutcome{{Command: "false", ExitCode: 3, Stderr: "no\n"}},
		}}}, nil
	}})
	r := b.call("execute_terminal_command", map[string]any{"sandbox_id": "sbx_1", "command": "false", "cwd": "in", "timeout_seconds": 7, "wait_seconds": 3})
	if r.IsError || field(t, r, "exit_code") != 3.0 || field(t, r, "stderr") != "no\n" || field(t, r, "results") != nil || !strings.Contains(textOf(r), "exit code: 3") {
		t.Errorf("%s %v", textOf(r), r.StructuredContent)
	}
}

func TestRunsThatDoNotComplete(t *testing.T) {
	t.Parallel()
	sofar := &wire.Result{Execute: &wire.ExecuteResult{Stdout: "so far\n"}}
	for name, c := range map[string]struct {
		job     wire.Job
		isError bool
		want    []string
	}{
		"Queued":   {wire.Job{State: "queued", Position: 3}, false, []string{"position 3", "get_job_result", "job_1"}},
		"Running":  {wire.Job{State: "running"}, false, []string{"running and continues", "get_job_result", "job_1", "cancel_job"}},
		"Begun":    {wire.Job{State: "running", StartedAt: new(time.Now().Add(time.Hour)), Request: &wire.JobSpec{TimeoutSeconds: 300}}, false, []string{"running (for 0 s of at most 300 s)"}},
		"TimedOut": {wire.Job{State: "timed_out", Result: sofar, Error: &wire.JobError{Code: "unavailable", Message: "The timeout of 2 seconds."}}, false, []string{"timed_out", "2 seconds", "so far"}},
		"Canceled": {wire.Job{State: "canceled", Error: &wire.JobError{Code: "conflict", Message: "The job was canceled."}}, false, []string{"canceled"}},
		"Failed":   {wire.Job{State: "failed", Error: &wire.JobError{Code: "unavailable", Message: "The engine is away."}}, true, []string{"The engine is away.", "job_1", "Try again"}},
		"Lost":     {wire.Job{State: "lost"}, true, []string{"lost", "job_1"}},
		"Internal": {wire.Job{State: "failed", Error: &wire.JobError{Code: "internal", Message: "Something is ours."}}, true, []string{"Something is ours.", "Try again"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.job.ID, c.job.Kind, c.job.SandboxID = "job_1", "execute", "sbx_1"
			f := &fakeFarm{
				ExecuteFunc: func(context.Context, string, wire.ExecuteRequest, time.Duration) (wire.Job, error) { return c.job, nil },
				JobFunc:     func(context.Context, string, time.Duration) (wire.Job, error) { return c.job, nil },
			}
			b := setup(t, f)
			for _, r := range []*protocol.CallToolResult{python(b, nil), b.call("get_job_result", map[string]any{"job_id": "job_1"})} {
				if r.IsError != c.isError || !r.IsError && field(t, r, "state") != c.job.State {
					t.Errorf("isError %t: %v", r.IsError, r.StructuredContent)
				}
				for _, want := range c.want {
					if !strings.Contains(textOf(r), want) {
						t.Errorf("the text lacks %q:\n%s", want, textOf(r))
					}
				}
			}
		})
	}
}

func TestWaits(t *testing.T) {
	t.Parallel()
	var got []time.Duration
	f := &fakeFarm{
		ExecuteFunc: func(_ context.Context, _ string, _ wire.ExecuteRequest, wait time.Duration) (wire.Job, error) {
			got = append(got, wait)
			return wire.Job{ID: "job_1", State: "running"}, nil
		},
		JobFunc: func(_ context.Context, _ string, wait time.Duration) (wire.Job, error) {
			got = append(got, wait)
			return wire.Job{ID: "job_1", Kind: "execute", State: "running"}, nil
		},
	}
	b := setup(t, f)
	python(b, nil)
	python(b, map[string]any{"wait_seconds": 0})
	python(b, map[string]any{"wait_seconds": 50})
	python(b, map[string]any{"wait_seconds": 0.5})
	b.call("get_job_result", map[string]any{"job_id": "job_1"})
	want := []time.Duration{45 * time.Second, 0, 50 * time.Second, 500 * time.Millisecond, 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func b64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

func TestPicturesAreSentOnce(t *testing.T) {
	t.Parallel()
	shown, saved, other := []byte("\x89PNG shown"), []byte("\x89PNG saved"), []byte("\x89PNG other")
	plot := artifact("plot.png", "image/png", saved)
	for name, c := range map[string]struct {
		f    *fakeFarm
		want [][]byte
	}{
		"Shown":           {executed(wire.ExecuteResult{Results: []wire.Rich{{Mime: "image/png", Data: b64(shown)}, {Mime: "text/plain", Data: "<Figure>"}}}), [][]byte{shown}},
		"ShownInLines":    {executed(wire.ExecuteResult{Results: []wire.Rich{{Mime: "image/png", Data: b64(shown)[:8] + "\n" + b64(shown)[8:] + "\n"}}}), [][]byte{shown}},
		"ShownTwice":      {executed(wire.ExecuteResult{Results: []wire.Rich{{Mime: "image/png", Data: b64(shown)}, {Display: 1, Mime: "image/png", Data: b64(shown)}}}), [][]byte{shown}},
		"TwoShown":        {executed(wire.ExecuteResult{Results: []wire.Rich{{Mime: "image/png", Data: b64(shown)}, {Display: 1, Mime: "image/jpeg", Data: b64(other)}}}), [][]byte{shown, other}},
		"OneInTwoTypes":   {executed(wire.ExecuteResult{Results: []wire.Rich{{Mime: "image/jpeg", Data: b64(other)}, {Mime: "image/png", Data: b64(shown)}}}), [][]byte{shown}},
		"Updated":         {executed(wire.ExecuteResult{Results: []wire.Rich{{Mime: "image/png", Data: b64(other)}, {Mime: "image/png", Data: b64(shown)}}}), [][]byte{shown}},
		"Saved":           {withArtifacts(wire.ExecuteResult{}, plot), [][]byte{saved}},
		"SavedTwice":      {withArtifacts(wire.ExecuteResult{}, plot, artifact("copy.png", "image/png", saved)), [][]byte{saved}},
		"ShownAndSaved":   {withArtifacts(wire.ExecuteResult{Results: []wire.Rich{{Mime: "image/png", Data: b64(shown)}}}, plot), [][]byte{shown}},
		"ShownByArtifact": {withArtifacts(wire.ExecuteResult{Results: []wire.Rich{{Mime: "image/png", ArtifactID: plot.ID, URL: plot.URL}}}, plot), [][]byte{saved}},
		"NoPicture":       {withArtifacts(wire.ExecuteResult{Results: []wire.Rich{{Mime: "image/svg+xml", Data: "<svg/>"}}}, artifact("a.csv", "text/csv", saved)), nil},
		"BrokenBase64":    {executed(wire.ExecuteResult{Results: []wire.Rich{{Mime: "image/png", Data: "%%%"}}}), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := python(setup(t, c.f), nil)
			var got [][]byte
			for _, image := range blocksOf[protocol.ImageContent](r) {
				content, err := base64.StdEncoding.DecodeString(image.Data)
				if err != nil || !strings.HasPrefix(image.MIMEType, "image/") {
					t.Fatalf("%v %s", err, image.MIMEType)
				}
				got = append(got, content)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			for _, one := range field(t, r, "results").([]any) {
				if mime := one.(map[string]any)["mime"]; mime == "image/png" || mime == "image/jpeg" {
					t.Errorf("a picture is repeated: %v", one)
				}
			}
		})
	}
}

func TestPictureLimits(t *testing.T) {
	t.Parallel()
	const limit = 100
	small := func(o *mcp.Options) { o.Limits.ImageBytes, o.Limits.Images = limit, 3 }
	for size, want := range map[int]int{limit - 1: 1, limit: 1, limit + 1: 0} {
		picture := bytes.Repeat([]byte{'p'}, size)
		for name, f := range map[string]*fakeFarm{
			"shown": executed(wire.ExecuteResult{Results: []wire.Rich{{Mime: "image/png", Data: b64(picture)}}}),
			"saved": withArtifacts(wire.ExecuteResult{}, artifact("p.png", "image/png", picture)),
			"large": withArtifacts(wire.ExecuteResult{Results: []wire.Rich{{Mime: "image/png", ArtifactID: "art_p.png", URL: "http://store.test/p.png"}}}, artifact("p.png", "image/png", picture)),
		} {
			r := python(setup(t, f, small), nil)
			if got := len(blocksOf[protocol.ImageContent](r)); got != want {
				t.Errorf("%s, %d bytes: %d images, want %d", name, size, got, want)
			}
			if reported := strings.Contains(textOf(r), "1 picture is not in this answer"); reported != (want == 0) {
				t.Errorf("%s, %d bytes: %s", name, size, textOf(r))
			}
			if results := field(t, r, "results").([]any); name == "large" && want == 0 && (len(results) != 1 || results[0].(map[string]any)["url"] != "http://store.test/p.png") {
				t.Errorf("the link is missing: %v", results)
			}
		}
	}
	for count, want := range map[int]int{2: 2, 3: 3, 4: 3, 5: 3} {
		var rich []wire.Rich
		for i := range count {
			rich = append(rich, wire.Rich{Display: i, Mime: "image/png", Data: b64(fmt.Appendf(nil, "picture %d", i))})
		}
		r := python(setup(t, executed(wire.ExecuteResult{Results: rich}), small), nil)
		if got := len(blocksOf[protocol.ImageContent](r)); got != want || strings.Contains(textOf(r), fmt.Sprintf("%d pictures are not", count-want)) != (count-want > 1) {
			t.Errorf("%d pictures: %d images, want %d\n%s", count, got, want, textOf(r))
		}
	}
}

// Pictures that the object store has are read while the answer takes more of them, those that equal one that is shown, or are too large, are not.
func TestPicturesBeyondTheLimitAreNotRead(t *testing.T) {
	t.Parallel()
	const limit = 3
	few := func(o *mcp.Options) { o.Limits.Images, o.Limits.ImageBytes = limit, 100 }
	for count, want := range map[int]struct{ images, read, leftOut int }{limit - 1: {2, 2, 1}, limit: {3, 3, 1}, limit + 1: {3, 3, 2}, 10: {3, 3, 8}} {
		for name, again := range map[string]bool{"Others": false, "AndTheFirstOnceMore": true} {
			var list []mcp.Artifact
			var rich []wire.Rich
			for i := range count {
				list = append(list, artifact(fmt.Sprint(i, ".png"), "image/png", fmt.Append(nil, "picture ", i)))
			}
			if again {
				list = append(list, artifact("again.png", "image/png", []byte("picture 0")))
			}
			list = append(list, artifact("large.png", "image/png", make([]byte, 101)))
			for i, a := range list {
				rich = append(rich, wire.Rich{Display: i, Mime: "image/png", ArtifactID: a.ID, URL: a.URL})
			}
			f, read := withArtifacts(wire.ExecuteResult{Results: rich}, list...), 0
			artifactOf := f.ArtifactFunc
			f.ArtifactFunc = func(ctx context.Context, id string, limit int64) (mcp.Artifact, error) {
				read++
				return artifactOf(ctx, id, limit)
			}
			r := python(setup(t, f, few), nil)
			links := len(field(t, r, "results").([]any))
			if got := len(blocksOf[protocol.ImageContent](r)); got != want.images || read != want.read || links != want.leftOut {
				t.Errorf("%d pictures, %s: %d images, %d are read, %d links; want %+v", count, name, got, read, links, want)
			}
			if note := " not in this answer"; strings.Contains(textOf(r), note) != (want.leftOut > 0) {
				t.Errorf("%d pictures, %s: %s", count, name, textOf(r))
			}
		}
	}
}

func TestTextAndLinkLimits(t *testing.T) {
	t.Parallel()
	const limit = 1000
	small := func(o *mcp.Options) { o.Limits.TextBytes, o.Limits.Links = limit, 2 }
	for size, cut := range map[int]bool{limit - 1: false, limit: false, limit + 1: true, 50 * limit: true} {
		out := "begin" + strings.Repeat("ü", (size-8)/2) + strings.Repeat("x", (size-8)%2) + "end"
		r := python(setup(t, executed(wire.ExecuteResult{Stdout: out}), small), nil)
		text := textOf(r)
		got, _ := field(t, r, "stdout").(string)
		if marks, _ := field(t, r, "truncated").(map[string]any); marks["stdout"] != cut || marks["stderr"] != false || !strings.Contains(text, got) || (got == out) == cut {
			t.Errorf("%d bytes: %d bytes in the structured content, marks %v", size, len(got), marks)
		}
		if got := strings.Contains(text, "left out"); got != cut || len(text) > limit+400 || !strings.Contains(text, "begin") || !strings.Contains(text, "end") || strings.ContainsRune(text, '�') {
			t.Errorf("%d bytes: cut %t, want %t, %d bytes of text", size, got, cut, len(text))
		}
	}
	long := strings.Repeat("v", 50*limit)
	r := python(setup(t, executed(wire.ExecuteResult{ExitCode: 1, Error: &wire.CodeError{Name: "ValueError", Value: long}}), small), nil)
	if text := textOf(r); !strings.Contains(text, "left out") || len(text) > limit+400 || field(t, r, "error").(map[string]any)["value"] != long {
		t.Errorf("a long error: %d bytes of text", len(text))
	}
	for count, want := range map[int]int{1: 1, 2: 2, 3: 2} {
		var list []mcp.Artifact
		for i := range count {
			list = append(list, artifact(fmt.Sprintf("%d.csv", i), "text/csv", fmt.Append(nil, i)))
		}
		r := python(setup(t, withArtifacts(wire.ExecuteResult{}, list...), small), nil)
		if got := len(blocksOf[protocol.ResourceLink](r)); got != want || strings.Contains(textOf(r), "and 1 more file: call") != (count > want) || len(field(t, r, "artifacts").([]any)) != want || (field(t, r, "artifacts_unlisted") == 1.0) != (count > want) {
			t.Errorf("%d artifacts: %d links\n%s", count, got, textOf(r))
		}
	}
}

// The artifact with the whole of a cut stream is listed, whatever its place, and the marker names it.
func TestACutStreamNamesItsArtifact(t *testing.T) {
	t.Parallel()
	small := func(o *mcp.Options) { o.Limits.TextBytes, o.Limits.Links = 1000, 1 }
	whole := artifact("1-stdout.txt", "text/plain", bytes.Repeat([]byte("x"), 5000))
	whole.Path = ".output/1-stdout.txt"
	r := python(setup(t, withArtifacts(wire.ExecuteResult{
		Stdout: strings.Repeat("x", 2000), Stderr: strings.Repeat("y", 2000), Truncated: wire.Truncated{Stdout: true},
	}, artifact("a.csv", "text/csv", []byte("x")), whole), small), nil)
	listed, _ := field(t, r, "artifacts").([]any)
	if len(listed) != 1 || listed[0].(map[string]any)["path"] != ".output/1-stdout.txt" {
		t.Errorf("artifacts are %v", listed)
	}
	stdout, _ := field(t, r, "stdout").(string)
	stderr, _ := field(t, r, "stderr").(string)
	if strings.Contains(textOf(r), "download_file gives") {
		t.Error("download_file is to read what is no file of the workspace")
	}
	if !strings.Contains(stdout, "4000 bytes left out; artifact .output/1-stdout.txt") || !strings.Contains(stderr, "1000 bytes left out; print less") {
		t.Errorf("%s\n%s", stdout, stderr)
	}
}
