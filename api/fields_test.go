package api_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// pointers lists the fields that a problem names.
func pointers(p wire.Problem) []string {
	out := make([]string, len(p.Errors))
	for i, e := range p.Errors {
		out[i] = e.Pointer
	}
	return out
}

func TestErrorsNameEveryFieldOfTheBody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := "/v1/sandboxes/" + b.sandbox()
	for name, c := range map[string]struct {
		method, target, body string
		status               int
		want                 []string
	}{
		"One":         {"POST", box + "/execute", `{"code":""}`, 422, []string{"/code"}},
		"Syntax":      {"POST", box + "/execute", `{"code":`, 400, []string{""}},
		"NoObject":    {"POST", box + "/execute", `[]`, 400, []string{""}},
		"FormAndSize": {"POST", box + "/execute", `{"cod":"1","timeout_seconds":0,"env":{"A=B":"1","C":5},"context":"../x"}`, 400, []string{"/cod", "/env/C", "/code", "/timeout_seconds", "/context", "/env/A=B"}},
		"Create": {
			"POST", "/v1/sandboxes", `{"name":"a\u0000b","image":"no-such","network":"bridge","ttl_seconds":1,"idle_seconds":1,"resources":{"memory_mb":1,"cpus":0},"labels":{"a/b":"\u0007"},"gpu":{"count":65},"packages":["six","-e ."],"callback_url":"http://127.0.0.1/"}`, 422,
			[]string{"/name", "/labels/a~1b", "/gpu/count", "/network", "/resources/memory_mb", "/resources/cpus", "/ttl_seconds", "/idle_seconds", "/callback_url", "/image", "/packages/1"},
		},
		"Commands":              {"POST", box + "/commands", `{"commands":["true","",5],"cwd":"a\u0000b"}`, 400, []string{"/commands/2", "/commands/1", "/cwd"}},
		"Either":                {"POST", box + "/commands", `{"command":"true","commands":["true"]}`, 422, []string{""}},
		"EitherWrong":           {"POST", box + "/commands", `{"commands":"true"}`, 400, []string{"/commands"}},
		"Install":               {"POST", box + "/packages", `{"packages":["--pre","six","../x"],"timeout_seconds":0}`, 422, []string{"/packages/0", "/packages/2", "/timeout_seconds"}},
		"OutputLimit":           {"POST", box + "/execute", `{"code":"1","on_output_limit":"pause"}`, 422, []string{"/on_output_limit"}},
		"OutputLimitOfCommands": {"POST", box + "/commands", `{"command":"1","on_output_limit":""}`, 422, []string{"/on_output_limit"}},
		"OutputLimitOfARun":     {"POST", "/v1/run", `{"code":"1","on_output_limit":"Stop"}`, 422, []string{"/on_output_limit"}},
		"Filename":              {"POST", box + "/execute", `{"code":"1","filename":"../x.py"}`, 422, []string{"/filename"}},
		"FilenameOfBash":        {"POST", box + "/execute", `{"code":"1","filename":"x.sh","language":"bash"}`, 422, []string{"/filename"}},
		"FilenameOfARun":        {"POST", "/v1/run", `{"code":"1","filename":"/etc/x.py"}`, 422, []string{"/filename"}},
		"Run":                   {"POST", "/v1/run", `{"code":"1","language":"cobol","files":[{"path":"../x","content":""},{"path":"y"},{"content":""}]}`, 400, []string{"/files/2/path", "/language", "/files/0/path", "/files/1"}},
		"Move":                  {"POST", box + "/files/move", `{"from":"../a","to":""}`, 422, []string{"/from", "/to"}},
		"Patch":                 {"PATCH", box, `{"ttl_seconds":-1,"labels":{"":"x"},"nam":1}`, 400, []string{"/nam", "/labels/", "/ttl_seconds"}},
		"Direction":             {"PATCH", box, `{"name":"a\u202egpj.exe","labels":{"a\u2066":"x","b":"\u061c"}}`, 422, []string{"/name", "/labels/a\u2066", "/labels/b"}},
		"Control":               {"POST", box + "/interrupt", `{"context":"a b","callback_url":"ftp://x"}`, 422, []string{"/context", "/callback_url"}},
		"Frozen":                {"POST", box + "/hibernate", `{"contex":"x"}`, 400, []string{"/contex"}},
		"Batch":                 {"POST", "/v1/jobs/batch", `{"jobs":[],"job":1}`, 400, []string{"/job", "/jobs"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := *b
			b.t = t
			p := b.problem(farm.CodeInvalid, c.status, c.method, c.target, c.body)
			if diff := cmp.Diff(c.want, pointers(p)); diff != "" {
				t.Errorf("pointers (-want +got):\n%s\nof %+v", diff, p.Errors)
			}
			for i, e := range p.Errors {
				if i < 5 && !strings.Contains(p.Detail, e.Detail) || e.Detail == "" {
					t.Errorf("the detail %q lacks %q", p.Detail, e.Detail)
				}
			}
		})
	}
}

// The name of the code's file has the limits of other paths.
func TestFilenameHasTheLimitsOfPaths(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := "/v1/sandboxes/" + b.sandbox()
	for _, extra := range []int{-1, 0, 1} {
		name := strings.Repeat("n", farm.MaxNameBytes+extra)
		path := strings.Repeat("d/", farm.MaxPathBytes/2-1) + strings.Repeat("n", 2+extra)
		for _, filename := range []string{name, path} {
			for _, target := range []string{box + "/execute", "/v1/run"} {
				body := map[string]any{"code": "print 1", "filename": filename}
				if extra > 0 {
					if p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", target, body); !slices.Equal(pointers(p), []string{"/filename"}) {
						t.Errorf("%d bytes: %+v", len(filename), p)
					}
				} else if job := get[wire.Job](b, http.StatusOK, "POST", target+"?wait=20", body); job.Request.Filename != filename {
					t.Errorf("%d bytes: the job has %q", len(filename), job.Request.Filename)
				}
			}
		}
	}
}

func TestErrorsOfABatchPointIntoItsBody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := get[wire.BatchResult](b, http.StatusMultiStatus, "POST", "/v1/jobs/batch",
		`{"jobs":[{"kind":"create"},{"kind":"create","ttl_seconds":1,"nam":"x"},7,{"kind":"close","sandbox_id":"x","why":1}]}`)
	for i, want := range [][]string{nil, {"/jobs/1/nam", "/jobs/1/ttl_seconds"}, {"/jobs/2"}, {"/jobs/3/why"}} {
		var have []string
		if e := got.Jobs[i].Error; e != nil {
			have = pointers(*e)
		}
		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("entry %d (-want +got):\n%s", i, diff)
		}
	}
}

func TestErrorsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	packages := make([]string, 100)
	for i := range packages {
		packages[i] = "--" + strings.Repeat("x", 400)
	}
	p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", "/v1/sandboxes", map[string]any{"packages": packages})
	if len(p.Errors) != strict.MaxProblems || len(p.Detail) > 2000 || !strings.Contains(p.Detail, "more") {
		t.Errorf("%d errors, detail of %d bytes: %s", len(p.Errors), len(p.Detail), p.Detail)
	}
}

// A problem that is not in the body has no list of fields.
func TestOtherErrorsNameNoField(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, target := range []string{"/v1/sandboxes/sbx_nobody", "/v1/sandboxes?limit=0"} {
		_, text := b.do("GET", target, nil)
		var p map[string]any
		if err := json.Unmarshal(text, &p); err != nil || p["errors"] != nil {
			t.Errorf("%s: %s", target, text)
		}
	}
}
