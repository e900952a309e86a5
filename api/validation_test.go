package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// small are limits that can be reached in a test.
func small(c *api.Config, _ *api.Deps) {
	l := farm.DefaultLimits()
	l.MaxBodyBytes, l.MaxCodeBytes, l.MaxInputBytes = 20_000, 1000, 1000
	l.MaxEnv, l.MaxEnvBytes, l.MaxLabels, l.MaxLabelBytes, l.MaxNameBytes, l.MaxCommands = 3, 100, 3, 20, 10, 3
	c.Limits = l
}

func pairs(n, size int) map[string]string {
	out := map[string]string{}
	for i := range n {
		out[fmt.Sprintf("K%d", i)] = strings.Repeat("v", size)
	}
	return out
}

// TestLimits tries each limit one below, at and one above it.
func TestLimits(t *testing.T) {
	t.Parallel()
	b := setup(t, small)
	box := "/v1/sandboxes/" + b.sandbox()
	type m = map[string]any
	tests := map[string]struct {
		target string
		body   func(n int) any
		limit  int
		over   farm.Code // code one above; "" where that is allowed
		under  farm.Code // code one below
	}{
		"CodeBytes":     {box + "/execute", func(n int) any { return m{"code": strings.Repeat("#", n)} }, 1000, "too_large", ""},
		"RunCodeBytes":  {"/v1/run", func(n int) any { return m{"code": strings.Repeat("#", n)} }, 1000, "too_large", ""},
		"CommandBytes":  {box + "/commands", func(n int) any { return m{"command": strings.Repeat("#", n)} }, 1000, "too_large", ""},
		"Commands":      {box + "/commands", func(n int) any { return m{"commands": make3(n)} }, 3, "invalid", ""},
		"CommandsMin":   {box + "/commands", func(n int) any { return m{"commands": make3(n)} }, 1, "", "invalid"},
		"TimeoutMin":    {box + "/execute", func(n int) any { return m{"code": "1", "timeout_seconds": n} }, 1, "", "invalid"},
		"TimeoutMax":    {box + "/execute", func(n int) any { return m{"code": "1", "timeout_seconds": n} }, 86400, "invalid", ""},
		"RunTimeoutMax": {"/v1/run", func(n int) any { return m{"code": "1", "timeout_seconds": n} }, 86400, "invalid", ""},
		"CmdTimeoutMin": {box + "/commands", func(n int) any { return m{"command": "1", "timeout_seconds": n} }, 1, "", "invalid"},
		"TTLMin":        {"/v1/sandboxes", func(n int) any { return m{"ttl_seconds": n} }, 5, "", "invalid"},
		"TTLMax":        {"/v1/sandboxes", func(n int) any { return m{"ttl_seconds": n} }, 604800, "invalid", ""},
		"IdleMin":       {"/v1/sandboxes", func(n int) any { return m{"idle_seconds": n} }, 5, "", "invalid"},
		"IdleMax":       {"/v1/sandboxes", func(n int) any { return m{"idle_seconds": n} }, 604800, "invalid", ""},
		"IdleOff":       {"/v1/sandboxes", func(n int) any { return m{"idle_seconds": n} }, 0, "invalid", "invalid"},
		"Env":           {box + "/execute", func(n int) any { return m{"code": "1", "env": pairs(n, 1)} }, 3, "invalid", ""},
		"EnvBytes":      {box + "/execute", func(n int) any { return m{"code": "1", "env": pairs(1, n-2)} }, 100, "invalid", ""},
		"Labels":        {"/v1/sandboxes", func(n int) any { return m{"labels": pairs(n, 1)} }, 3, "invalid", ""},
		"LabelValue":    {"/v1/sandboxes", func(n int) any { return m{"labels": pairs(1, n)} }, 20, "invalid", ""},
		"LabelKey":      {"/v1/sandboxes", func(n int) any { return m{"labels": m{strings.Repeat("k", n): ""}} }, 20, "invalid", ""},
		"Name":          {"/v1/sandboxes", func(n int) any { return m{"name": strings.Repeat("n", n)} }, 10, "invalid", ""},
		"MemoryMin":     {"/v1/sandboxes", func(n int) any { return m{"resources": m{"memory_mb": n}} }, 64, "", "invalid"},
		"MemoryMax":     {"/v1/sandboxes", func(n int) any { return m{"resources": m{"memory_mb": n}} }, 65536, "invalid", ""},
		"PIDsMin":       {"/v1/sandboxes", func(n int) any { return m{"resources": m{"pids": n}} }, 32, "", "invalid"},
		"PIDsMax":       {"/v1/sandboxes", func(n int) any { return m{"resources": m{"pids": n}} }, 1024, "invalid", ""},
		"DiskMin":       {"/v1/sandboxes", func(n int) any { return m{"resources": m{"disk_mb": n}} }, 16, "", "invalid"},
		"DiskMax":       {"/v1/sandboxes", func(n int) any { return m{"resources": m{"disk_mb": n}} }, 65536, "invalid", ""},
		"CPUsMax":       {"/v1/sandboxes", func(n int) any { return m{"resources": m{"cpus": n}} }, 64, "invalid", ""},
		"InputBytes":    {"/v1/run", func(n int) any { return m{"code": "1", "files": []m{{"path": "a", "content": strings.Repeat("x", n)}}} }, 1000, "too_large", ""},
		"GPU":           {"/v1/sandboxes", func(n int) any { return m{"gpu": m{"count": n}} }, 0, "invalid", "invalid"},
		"Context":       {box + "/execute", func(n int) any { return m{"code": "1", "context": strings.Repeat("c", n)} }, 64, "invalid", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for n, want := range map[int]farm.Code{test.limit - 1: test.under, test.limit: "", test.limit + 1: test.over} {
				answer, text := b.do("POST", test.target, test.body(n))
				var p wire.Problem
				_ = json.Unmarshal(text, &p)
				if p.Code != string(want) || (answer.StatusCode < 300) != (want == "") {
					t.Errorf("%d: status %d, want %q: %s", n, answer.StatusCode, want, text)
				}
			}
		})
	}
}

// Each worker of a Kubernetes namespace keeps the names of the variables of all sandboxes there: they were bounded together only, at 256 KiB.
func TestNamesOfVariablesAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for n, code := range map[int]farm.Code{127: "", 128: "", 129: farm.CodeInvalid} {
		body := fmt.Sprintf(`{"env":{%q:"1"}}`, strings.Repeat("N", n))
		if code == "" {
			get[wire.Created](b, http.StatusAccepted, "POST", "/v1/sandboxes", body)
			continue
		}
		if p := b.problem(code, http.StatusUnprocessableEntity, "POST", "/v1/sandboxes", body); !strings.Contains(p.Detail, "of 129 bytes; at most 128 are allowed") || len(p.Detail) > 300 {
			t.Errorf("a name of %d bytes: %s", n, p.Detail)
		}
	}
}

func make3(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = "true"
	}
	return out
}

func TestBodyLimit(t *testing.T) {
	t.Parallel()
	b := setup(t, small)
	target := "/v1/sandboxes/" + b.sandbox() + "/execute"
	const limit = 20_000
	for size, status := range map[int]int{limit - 1: 202, limit: 202, limit + 1: 413, 5_000_000: 413} {
		body := `{"code":"1"` + strings.Repeat(" ", size-len(`{"code":"1"}`)) + "}"
		if answer, text := b.do("POST", target, body); answer.StatusCode != status {
			t.Errorf("%d bytes: %d %s", size, answer.StatusCode, text)
		}
		chunked := struct{ *strings.Reader }{strings.NewReader(body)}
		if answer, text := b.do("POST", target, chunked, "Content-Type", "application/json"); answer.StatusCode != status {
			t.Errorf("%d bytes in chunks: %d %s", size, answer.StatusCode, text)
		}
	}
}

func TestBadBodies(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := "/v1/sandboxes/" + b.sandbox()
	tests := map[string][]string{
		box + "/execute": {
			"", "null", "[]", `"x"`, `{"code":`, `{}`, `{"code":""}`, `{"code":5}`, `{"code":"1","cod":"2"}`, `{"code":"1"} x`, "{\"code\":\"\xff\"}",
			`{"code":"1","language":"cobol-68"}`, `{"code":"1","language":""}`, `{"code":"1","context":""}`, `{"code":"1","context":"../x"}`, `{"code":"1","env":["A=1"]}`,
			`{"code":"1","env":{"A=B":"1"}}`, `{"code":"1","env":{"":"1"}}`, `{"code":"1","env":{"1A":"1"}}`, `{"code":"1","env":{"A":"x\u0000y"}}`,
			`{"code":"1","callback_url":"file:///etc/passwd"}`, `{"code":"1","callback_url":"not a url"}`, `{"code":"1","timeout_seconds":1e9}`,
			`{"code":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`,
		},
		box + "/commands": {
			`{}`, `{"command":"true","commands":["true"]}`, `{"command":""}`, `{"commands":[]}`, `{"commands":[5]}`, `{"commands":["true",""]}`, `{"command":"a\u0000b"}`,
			`{"command":"true","shell":"zsh"}`, `{"command":"true","cwd":"a\u0000b"}`,
		},
		box + "/packages": {
			`{}`, `{"packages":[]}`, `{"packages":"six"}`, `{"packages":[5]}`, `{"packages":["six"],"manager":"apt"}`, `{"packages":["--index-url=x"]}`,
			`{"packages":["-r /etc/passwd"]}`, `{"packages":["git+https://127.0.0.1/x.git"]}`, `{"packages":["six; rm -rf /"]}`, `{"packages":[""]}`,
			`{"packages":["six\n--x"]}`, `{"packages":["six @ http://127.0.0.1/x.whl"]}`, `{"packages":["../x"]}`, `{"packages":["six"],"timeout_seconds":0}`,
		},
		box + "/files/move": {`{}`, `{"from":"a"}`, `{"from":"../a","to":"b"}`, `{"from":"a","to":"/etc/b"}`, `{"from":"a","to":""}`, `{"from":".","to":"b"}`},
		"/v1/sandboxes": {
			`{"image":"no-such-image"}`, `{"image":5}`, `{"image":"../../etc"}`, `{"image":""}`, `{"network":"bridge"}`, `{"network":"none\u0000"}`, `{"network":"full"}`,
			`{"network":"allowlist"}`, `{"network":"none","allow_hosts":["x"]}`, `{"imagee":"python"}`, `{"resources":{"ram":5}}`, `{"resources":{"cpus":-1}}`, `{"resources":{"cpus":0}}`,
			`{"labels":["a"]}`, `{"labels":{"a":1}}`, `{"labels":{"":"1"}}`, `{"labels":{"a=b":"1"}}`, `{"labels":{"a":"\u0007"}}`, `{"name":"a\u0000b"}`, `{"packages":["-e ."]}`,
			`{"callback_url":"http://127.0.0.1/x"}`,
		},
		"/v1/run": {
			`{}`, `{"code":""}`, `{"code":"1","files":[{"path":"../x","content":""}]}`, `{"code":"1","files":[{"path":"x"}]}`, `{"code":"1","files":[{"path":"x","content":"","content_base64":""}]}`,
			`{"code":"1","files":[{"path":"x","content_base64":"!"}]}`, `{"code":"1","files":[{"path":"x","content":""},{"path":"./x","content":""}]}`, `{"code":"1","files":[{"content":""}]}`,
			`{"code":"1","language":"cobol"}`, `{"code":"1","context":"x"}`, `{"code":"1","packages":["--pre"]}`,
		},
		box + "/interrupt": {`{"context":5}`, `{"contex":"x"}`, `[]`, `{"context":"a b"}`},
	}
	for target, bodies := range tests {
		for _, body := range bodies {
			answer, text := b.do("POST", target, body, "Content-Type", "application/json")
			var p wire.Problem
			if err := json.Unmarshal(text, &p); err != nil || p.Code != "invalid" || answer.StatusCode != 400 && answer.StatusCode != 422 {
				t.Errorf("%s %.80s: %d %.300s", target, body, answer.StatusCode, text)
			}
			for _, inside := range []string{"wire.", "reflect", ".go:", "goroutine", "json:", "Go "} {
				if strings.Contains(p.Detail, inside) {
					t.Errorf("%s %.80s: the detail shows the inside: %s", target, body, p.Detail)
				}
			}
		}
	}
	for _, body := range []string{`{"on_idle":"sleep"}`, `{"on_idle":"hibernate"}`, `{"on_idle":"hibernate","idle_seconds":0}`} { // no node here can
		if p := b.problemOf("POST", "/v1/sandboxes", body); p.Code != "invalid" || p.Errors[0].Pointer != "/on_idle" {
			t.Errorf("POST %s: %+v", body, p)
		}
	}
	for _, body := range []string{`{"image":"python"}`, `{"ttl_seconds":-1}`, `[]`, `{"labels":{"a":null}}`} {
		if p := b.problemOf("PATCH", box, body); p.Code != "invalid" {
			t.Errorf("PATCH %s: %+v", body, p)
		}
	}
	for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "nonsense; ="} {
		b.problem(farm.CodeInvalid, http.StatusUnsupportedMediaType, "POST", box+"/execute", `{"code":"1"}`, "Content-Type", kind)
	}
	b.problem(farm.CodeInvalid, http.StatusUnsupportedMediaType, "POST", box+"/execute", `{"code":"1"}`, "Content-Encoding", "gzip")
	for _, kind := range []string{"application/json", "application/json; charset=utf-8", "application/vnd.x+json"} {
		if answer, text := b.do("POST", box+"/execute", `{"code":"1"}`, "Content-Type", kind); answer.StatusCode != http.StatusAccepted {
			t.Errorf("%s: %s", kind, text)
		}
	}
	b.problem(farm.CodeConflict, http.StatusConflict, "POST", box+"/hibernate", nil)
	b.problem(farm.CodeConflict, http.StatusConflict, "POST", box+"/resume", nil)
	get[wire.Job](b, http.StatusOK, "POST", box+"/interrupt?wait=20", nil)
	get[wire.Job](b, http.StatusOK, "POST", box+"/restart?wait=20", `{"context":"default"}`)
}

func TestCallbackAddresses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	target := "/v1/sandboxes/" + b.sandbox() + "/execute"
	body := func(url string) any { return map[string]any{"code": "1", "callback_url": url} }
	for _, url := range []string{
		"http://127.0.0.1/x", "http://127.1.2.3:80", "http://[::1]/", "http://10.0.0.1/", "http://172.16.5.5", "http://192.168.1.1", "http://169.254.169.254/latest",
		"http://100.100.100.200/", "http://[fd00::1]/", "http://[fe80::1]/", "http://[fe80::1%25eth0]/", "http://0.0.0.0/", "http://[::]/", "http://[::ffff:127.0.0.1]/", "http://[64:ff9b::7f00:1]/",
		"http://[2002:7f00:1::]/", "http://224.0.0.1/", "http://255.255.255.255/", "http://rebind.example.com/", "http://localhost/", "http://nowhere.example.com/",
		"ftp://hooks.example.com/", "//hooks.example.com/", "hooks.example.com", "http://", "http://user:secret@hooks.example.com/", "http://2130706433/", "http://127.1/", "javascript:alert(1)",
		"https://hooks.example.com/" + strings.Repeat("x", 5000),
	} {
		if p := b.problemOf("POST", target, body(url)); p.Code != "invalid" || p.Status != http.StatusUnprocessableEntity {
			t.Errorf("%.60s: %+v", url, p)
		}
	}
	for _, url := range []string{"https://hooks.example.com/a?b=c", "https://hooks.example.com./x", "http://93.184.215.14:8080/x", "http://[2606:2800::1]/"} {
		if answer, text := b.do("POST", target, body(url)); answer.StatusCode != http.StatusAccepted {
			t.Errorf("%s: %s", url, text)
		}
	}
	open := setup(t, func(c *api.Config, _ *api.Deps) { c.AllowPrivateCallbacks = true })
	target = "/v1/sandboxes/" + open.sandbox() + "/execute"
	if answer, text := open.do("POST", target, body("http://127.0.0.1:9/x")); answer.StatusCode != http.StatusAccepted {
		t.Errorf("allowed by the operator: %s", text)
	}
	open.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", target, body("file:///etc/passwd"))
}

// The contract once named the network full: who asks for it learns what to use instead, on this farm.
func TestNoFullNetwork(t *testing.T) {
	t.Parallel()
	for want, b := range map[string]*bundle{": use packages": setup(t), ": use allowlist and name the hosts in allow_hosts, or packages": setup(t, allowing(t, "*.example.com"))} {
		for target, body := range map[string]string{"/v1/sandboxes": `{"network":"full"}`, "/v1/run": `{"code":"1","network":"full"}`} {
			p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", target, body)
			if !strings.HasSuffix(p.Detail, want) {
				t.Errorf("%s: %s", target, p.Detail)
			}
		}
	}
}

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
			[]string{"/name", "/labels/a~1b", "/gpu/count", "/network", "/resources/memory_mb", "/resources/cpus", "/ttl_seconds", "/idle_seconds", "/image", "/packages/1", "/callback_url"},
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
		"Run":                   {"POST", "/v1/run", `{"code":"1","language":"cobol","files":[{"path":"../x","content":""},{"path":"y"},{"content":""}]}`, 400, []string{"/files/2/path", "/files/0/path", "/files/1", "/language"}},
		"Move":                  {"POST", box + "/files/move", `{"from":"../a","to":""}`, 422, []string{"/from", "/to"}},
		"Patch":                 {"PATCH", box, `{"ttl_seconds":-1,"labels":{"":"x"},"nam":1}`, 400, []string{"/nam", "/labels/", "/ttl_seconds"}},
		"Direction":             {"PATCH", box, `{"name":"a\u202egpj.exe","labels":{"a\u2066":"x","b":"\u061c"}}`, 422, []string{"/name", "/labels/a\u2066", "/labels/b"}},
		"Control":               {"POST", box + "/interrupt", `{"context":"a b","callback_url":"ftp://x"}`, 422, []string{"/context", "/callback_url"}},
		"NorThatOfARun":         {"POST", "/v1/run", `{"code":"1","packages":["-e ."],"callback_url":"http://rebind.example.com/"}`, 422, []string{"/packages/0"}},
		"NorThatOfACreate":      {"POST", "/v1/sandboxes", `{"packages":["-e ."],"callback_url":"http://rebind.example.com/"}`, 422, []string{"/packages/0"}},
		"NameIsNotLookedUp":     {"POST", box + "/execute", `{"code":"","callback_url":"http://rebind.example.com/"}`, 422, []string{"/code"}},
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
		testbed.Diff(t, fmt.Sprintf("entry %d", i), want, have)
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

// A body of 15 MiB of tiny values once took half a GiB. Each way in refuses it before it is decoded.
func TestBodiesOfTooManyValuesAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const large = http.StatusRequestEntityTooLarge
	list := func(n int) string { return "[1" + strings.Repeat(",1", n-2) + "]" } // the array counts as its first value
	many := list(farm.MaxBodyValues + 1)
	for target, body := range map[string]string{
		"/v1/run":              `{"code":"1","allow_hosts":` + many + `}`,
		"/v1/sandboxes":        `{"packages":` + many + `}`,
		"/v1/jobs/batch":       `{"jobs":` + many + `}`,
		"/v1/sandboxes?wait=1": many,
	} {
		if p := b.problem(farm.CodeTooLarge, large, "POST", target, body); !strings.Contains(p.Detail, "250000 values") {
			t.Errorf("%s: %s", target, p.Detail)
		}
	}
	answer, text := b.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"x":`+many+`}}}`, "Content-Type", "application/json")
	if answer.StatusCode != large || !strings.Contains(string(text), "250000 values") {
		t.Errorf("/mcp: %d %s", answer.StatusCode, text)
	}
	// The limit itself is not refused: the field is.
	if p := b.problem(farm.CodeInvalid, http.StatusBadRequest, "POST", "/v1/run", `{"code":"1","x":`+list(farm.MaxBodyValues-2)+`}`); len(p.Errors) != 1 {
		t.Errorf("at the limit: %+v", p)
	}
	b.problem(farm.CodeTooLarge, large, "POST", "/v1/run", `{"code":"1","x":`+list(farm.MaxBodyValues-1)+`}`)
	testbed.Diff(t, "GET /v1/limits", farm.MaxBodyValues, get[wire.Limits](b, http.StatusOK, "GET", "/v1/limits", nil).MaxBodyValues)
}

// The largest batch that the limits are made for.
func TestBatchOfManyValuesIsAccepted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var env strings.Builder
	for i := range 240 {
		fmt.Fprintf(&env, `,"A%d":""`, i)
	}
	entry := `{"kind":"execute","sandbox_id":"sbx_none","code":"1","env":{` + env.String()[1:] + `}}`
	got := get[wire.BatchResult](b, http.StatusMultiStatus, "POST", "/v1/jobs/batch", `{"jobs":[`+entry+strings.Repeat(","+entry, 999)+`]}`)
	if len(got.Jobs) != 1000 || got.Jobs[999].Error == nil || got.Jobs[999].Error.Code != string(farm.CodeNotFound) {
		t.Errorf("%d entries", len(got.Jobs))
	}
}
