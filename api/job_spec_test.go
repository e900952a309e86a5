package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestJobShowsItsRequest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := "/v1/sandboxes/" + b.sandbox()
	l := farm.DefaultLimits()
	resources := &wire.Resources{MemoryMB: l.Memory.Default, CPUs: l.CPUs.Default, PIDs: l.PIDs.Default, DiskMB: l.Disk.Default}
	for name, c := range map[string]struct {
		target, body string
		want         wire.JobSpec
	}{
		"Execute": {
			box + "/execute", `{"code":"print 1","filename":"/workspace/src//x.py","env":{"B":"secret-b","A":"secret-a"},"timeout_seconds":9,"auto_install":true,"callback_url":"https://hooks.example.com/x?token=secret"}`,
			wire.JobSpec{Code: "print 1", Language: "python", Filename: "src/x.py", Context: "default", EnvNames: []string{"A", "B"}, AutoInstall: true, OnOutputLimit: "continue", TimeoutSeconds: 9, CallbackURL: "https://hooks.example.com/x"},
		},
		"Commands": {
			box + "/commands", `{"commands":["true","false"],"cwd":"src","env":{"A":"secret"},"continue_on_error":true,"on_output_limit":"stop"}`,
			wire.JobSpec{Commands: []string{"true", "false"}, Cwd: "src", EnvNames: []string{"A"}, ContinueOnError: true, OnOutputLimit: "stop", TimeoutSeconds: 300},
		},
		"Install": {box + "/packages", `{"packages":["six>1"]}`, wire.JobSpec{Packages: []string{"six>1"}, Manager: "pip", TimeoutSeconds: 300}},
		"Restart": {box + "/restart", `{"context":"other"}`, wire.JobSpec{Context: "other", TimeoutSeconds: 300}},
		"Move":    {box + "/files/move?wait=0", `{"from":"a","to":"b"}`, wire.JobSpec{Operation: "move", Path: "a", To: "b", TimeoutSeconds: 300}},
		"Run": {
			"/v1/run", `{"code":"print 1","filename":"x.py","packages":["six"],"env":{"A":"secret"},"files":[{"path":"a.txt","content":"secret content"}],"labels":{"k":"v"}}`,
			wire.JobSpec{
				Code: "print 1", Language: "python", Filename: "x.py", Context: "default", OnOutputLimit: "continue", Packages: []string{"six"}, Manager: "pip", EnvNames: []string{"A"},
				Files: []wire.SpecFile{{Path: "a.txt", Size: 14}}, Image: "python", Network: "packages", Resources: resources, Labels: map[string]string{"k": "v"}, TimeoutSeconds: 300,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := *b
			b.t = t
			_, text := b.do("POST", c.target, c.body)
			var made wire.Job
			if err := json.Unmarshal(text, &made); err != nil || made.Request == nil {
				t.Fatalf("%v: no request in %s", err, text)
			}
			read := get[wire.Job](&b, http.StatusOK, "GET", made.Links.Self, nil)
			whole := get[wire.JobSpec](&b, http.StatusOK, "GET", made.Links.Request, nil)
			for place, got := range map[string]wire.JobSpec{"answer": *made.Request, "record": *read.Request, "link": whole} {
				testbed.Diff(t, fmt.Sprintf("request in the %s", place), c.want, got)
			}
			if strings.Contains(string(text), "secret") {
				t.Errorf("the answer shows a secret: %s", text)
			}
		})
	}
}

// A long request is cut in the job, and complete behind its link.
func TestLongRequestIsCut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := "/v1/sandboxes/" + b.sandbox()
	const limit = 64 << 10
	for n, cut := range map[int]bool{limit - 1: false, limit: false, limit + 1: true} {
		code := "print " + strings.Repeat("é", (n-7)/2) + strings.Repeat("x", 1+(n-7)%2)
		job := get[wire.Job](b, http.StatusOK, "POST", box+"/execute?wait=20", map[string]any{"code": code, "env": map[string]any{"A": "secret"}})
		if len(code) != n || job.Request.Truncated != cut || !strings.HasPrefix(code, job.Request.Code) || len(job.Request.Code) < min(n, limit)-1 {
			t.Errorf("%d bytes: truncated %v, %d bytes are shown", n, job.Request.Truncated, len(job.Request.Code))
		}
		whole := get[wire.JobSpec](b, http.StatusOK, "GET", job.Links.Request, nil)
		if whole.Code != code || whole.Truncated || !slices.Equal(whole.EnvNames, []string{"A"}) {
			t.Errorf("%d bytes: the link gives %d, truncated %v, env %v", n, len(whole.Code), whole.Truncated, whole.EnvNames)
		}
	}
	var files []map[string]any
	var commands []string
	for i := range 200 {
		files = append(files, map[string]any{"path": fmt.Sprint(i), "content": ""})
		commands = append(commands, strings.Repeat("#", 1000))
	}
	run := get[wire.Job](b, http.StatusOK, "POST", "/v1/run?wait=20", map[string]any{"code": "print 1", "files": files})
	if len(run.Request.Files) != 100 || !run.Request.Truncated || len(get[wire.JobSpec](b, http.StatusOK, "GET", run.Links.Request, nil).Files) != 200 {
		t.Errorf("%d files are shown", len(run.Request.Files))
	}
	command := get[wire.Job](b, http.StatusOK, "POST", box+"/commands?wait=20", map[string]any{"commands": commands})
	if shown := strings.Join(command.Request.Commands, ""); len(shown) != limit || !command.Request.Truncated {
		t.Errorf("%d bytes of commands are shown", len(shown))
	}
	for key, text := range b.documents.All() {
		if strings.Contains(string(text), "secret") {
			t.Errorf("the document %s has a value of env", key)
		}
	}
	if keys := b.blobs.keys(); len(keys) != 0 {
		t.Errorf("requests are stored elsewhere too: %v", keys)
	}
	testbed.Must(t, b.documents.Delete(t.Context(), b.documents.Keys()...))
	b.problem(farm.CodeNotFound, http.StatusNotFound, "GET", command.Links.Request, nil) // the object is deleted
}

func TestArtifactIsDescribedAndDeleted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	job := get[wire.Job](b, http.StatusOK, "POST", "/v1/sandboxes/"+b.sandbox()+"/execute?wait=20", `{"code":"make a.txt"}`)
	made := job.Result.Execute.Artifacts[0]
	b.blobs.objects["artifacts/a.txt"] = []byte("x")
	path := "/v1/artifacts/" + made.ID
	testbed.Diff(t, "description", made, get[wire.Artifact](b, http.StatusOK, "GET", path+"/meta", nil))
	if answer, text := b.do("DELETE", path, nil); answer.StatusCode != http.StatusNoContent || len(text) != 0 {
		t.Fatalf("delete: %d %s", answer.StatusCode, text)
	}
	if keys := b.blobs.keys(); len(keys) != 0 {
		t.Errorf("objects are left: %v", keys)
	}
	b.problem(farm.CodeNotFound, http.StatusNotFound, "GET", path, nil)
	b.problem(farm.CodeNotFound, http.StatusNotFound, "GET", path+"/meta", nil)
	b.problem(farm.CodeNotFound, http.StatusNotFound, "DELETE", path, nil)
	if list := get[wire.List[wire.Artifact]](b, http.StatusOK, "GET", "/v1/artifacts", nil); len(list.Items) != 0 {
		t.Errorf("it is listed: %v", list.Items)
	}
	result := get[wire.Job](b, http.StatusOK, "GET", "/v1/jobs/"+job.ID, nil).Result.Execute
	if len(result.Artifacts) != len(job.Result.Execute.Artifacts)-1 || slices.Contains(result.Artifacts, made) {
		t.Errorf("its job still lists it, with a link that leads nowhere: %+v", result.Artifacts)
	}
	if want := "Artifacts that were deleted or have expired, and are not listed: 1."; !slices.Contains(result.Notes, want) {
		t.Errorf("notes = %q, want one that says %q", result.Notes, want)
	}
}
