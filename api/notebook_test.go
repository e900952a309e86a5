package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// notebook makes a sandbox as users of LLM Python Code Sandbox do.
func (b *bundle) notebook(headers ...string) string {
	b.t.Helper()
	return get[map[string]string](b, http.StatusOK, "POST", "/sandbox/create", nil, headers...)["sandbox_id"]
}

// detail checks that a request is refused in the original system's shape, and gives what it says.
func (b *bundle) detail(status int, method, target string, body any, headers ...string) string {
	b.t.Helper()
	answer, content := b.do(method, target, body, headers...)
	var got map[string]json.RawMessage
	if err := json.Unmarshal(content, &got); err != nil || len(got) != 1 || len(got["detail"]) == 0 || answer.StatusCode != status {
		b.t.Fatalf("%s %s: status %d, want %d and a detail alone: %s", method, target, answer.StatusCode, status, content)
	}
	var text string
	if json.Unmarshal(got["detail"], &text) == nil {
		return text
	}
	return string(got["detail"])
}

type field struct{ name, file, value string }

func form(fields ...field) (body *bytes.Buffer, kind string) {
	body = &bytes.Buffer{}
	w := multipart.NewWriter(body)
	for _, f := range fields {
		create := func() (io.Writer, error) { return w.CreateFormField(f.name) }
		if f.file != "" {
			create = func() (io.Writer, error) { return w.CreateFormFile(f.name, f.file) }
		}
		part, err := create()
		if err == nil {
			_, err = part.Write([]byte(f.value))
		}
		if err != nil {
			panic(err)
		}
	}
	_ = w.Close()
	return body, w.FormDataContentType()
}

const jsonKind = "application/json"

func TestNotebookRunsCodeInBothForms(t *testing.T) {
	t.Parallel()
	b := setup(t)
	path := "/sandbox/" + b.notebook() + "/execute"
	for name, c := range map[string]struct{ kind, body, want string }{
		"JSON":        {jsonKind, `{"code":"print hi","more":1}`, `{"stdout":["hi\n"],"stderr":[],"error":null,"results":[]}`},
		"JSONCharset": {jsonKind + "; charset=utf-8", `{"code":"print hi"}`, `{"stdout":["hi\n"],"stderr":[],"error":null,"results":[]}`},
		"JSONRaises":  {jsonKind, `{"code":"raise no"}`, `{"stdout":[],"stderr":[],"error":{"name":"ValueError","value":"no","traceback":["ValueError: no"]},"results":[]}`},
		"JSONNothing": {jsonKind, `{"code":""}`, `{"stdout":[],"stderr":[],"error":null,"results":[]}`},
		"Raw":         {"", "print a=%20b&c+d", `{"stdout":"a=%20b&c+d\n","stderr":"","error":"","traceback":"","results":[]}`},
		"RawForm":     {"application/x-www-form-urlencoded", "print a=b", `{"stdout":"a=b\n","stderr":"","error":"","traceback":"","results":[]}`},
		"RawNoType":   {"no type/;", "print a", `{"stdout":"a\n","stderr":"","error":"","traceback":"","results":[]}`},
		"RawMark":     {"text/plain", "\uFEFFprint a", `{"stdout":"a\n","stderr":"","error":"","traceback":"","results":[]}`},
		"JSONMark":    {jsonKind, "\uFEFF" + `{"code":"print a"}`, `{"stdout":["a\n"],"stderr":[],"error":null,"results":[]}`},
		"RawRaises":   {"text/plain", "raise no", `{"stdout":"","stderr":"","error":"ValueError","traceback":"ValueError: no","results":[]}`},
		"RawNothing":  {"text/plain", "\n", `{"stdout":"","stderr":"","error":"","traceback":"","results":[]}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer, content := b.do("POST", path, c.body, "Content-Type", c.kind)
			if got := strings.TrimSpace(string(content)); answer.StatusCode != http.StatusOK || got != c.want {
				t.Errorf("status %d: %s\nwant %s", answer.StatusCode, got, c.want)
			}
		})
	}
}

func TestNotebookRefusesInTheOriginalsShape(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.notebook()
	upload, kind := form(field{name: "file_path", value: "x"})
	for _, c := range []struct {
		path string
		body any
		kind string
		want string
	}{
		{"execute", `{"cod":"1"}`, jsonKind, `[{"loc":["body","code"],"msg":"Field required","type":"missing"}]`},
		{"execute", `{"code":7}`, jsonKind, `[{"loc":["body","code"],"msg":"Input should be a valid string","type":"string_type"}]`},
		{"execute", `{"code":null}`, jsonKind, `[{"loc":["body","code"],"msg":"Input should be a valid string","type":"string_type"}]`},
		{"execute", `{"code":"1"`, jsonKind, `[{"loc":["body","code"],"msg":"The body is not a JSON object","type":"json_invalid"}]`},
		{"execute", "{\"code\":\"print('\xe9')\"}", jsonKind, `[{"loc":["body","code"],"msg":"The body is not UTF-8","type":"string_unicode"}]`},
		{"execute", "print('\xe9')", "text/plain; charset=latin-1", `[{"loc":["body","code"],"msg":"The body is not UTF-8","type":"string_unicode"}]`},
		{"install", `{}`, jsonKind, `[{"loc":["body","package_name"],"msg":"Field required","type":"missing"}]`},
		{"upload", upload, kind, `[{"loc":["body","file"],"msg":"Field required","type":"missing"}]`},
		{"upload", "x", "text/plain", `[{"loc":["body","file"],"msg":"Field required","type":"missing"}]`},
		{"upload", "--b\r\nbroken", "multipart/form-data; boundary=b", `[{"loc":["body","file"],"msg":"The form is broken or ends too early","type":"multipart_error"}]`},
	} {
		if got := b.detail(http.StatusUnprocessableEntity, "POST", "/sandbox/"+id+"/"+c.path, c.body, "Content-Type", c.kind); got != c.want {
			t.Errorf("%s %v: %s\nwant %s", c.path, c.body, got, c.want)
		}
	}
}

func TestNotebookRefusesUnknownSandboxes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	closed := b.notebook()
	if got := get[map[string]string](b, http.StatusOK, "POST", "/sandbox/"+closed+"/close", nil); got["status"] != "success" || got["message"] != "Sandbox closed" {
		t.Errorf("close answers %v", got)
	}
	for _, id := range []string{closed, farm.NewID(farm.SandboxPrefix), "11111111-2222-3333-4444-555555555555", "a.b"} {
		upload, kind := form(field{name: "file", file: "x", value: "x"})
		for _, c := range []struct {
			method, path string
			body         any
			kind         string
		}{
			{"POST", "install", `{"package_name":"six"}`, jsonKind},
			{"POST", "execute", `{"code":"1"}`, jsonKind},
			{"POST", "execute", "print 1", ""},
			{"POST", "execute", "", ""},
			{"POST", "upload", upload, kind},
			{"GET", "files", nil, ""},
			{"GET", "download/x", nil, ""},
			{"POST", "close", nil, ""},
		} {
			if got := b.detail(http.StatusNotFound, c.method, "/sandbox/"+id+"/"+c.path, c.body, "Content-Type", c.kind); got != "Sandbox not found" {
				t.Errorf("%s %s: %s", id, c.path, got)
			}
		}
	}
}

func TestNotebookUploads(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.notebook()
	small, large := "small", strings.Repeat("0123456789abcdef", 5<<16)
	place := func(value string) field { return field{name: "file_path", value: value} }
	file := func(name, value string) field { return field{name: "file", file: name, value: value} }
	for name, c := range map[string]struct {
		query  string
		fields []field
		want   string
	}{
		"OwnName":     {"", []field{file("数据 1.bin", small)}, "数据 1.bin"},
		"LargeName":   {"", []field{file("large.bin", large)}, "large.bin"},
		"Query":       {"q/in.bin", []field{file("x", small)}, "q/in.bin"},
		"FieldBefore": {"", []field{place("f/before.bin"), file("x", small)}, "f/before.bin"},
		"FieldBehind": {"", []field{file("x", small), place("f/behind.bin")}, "f/behind.bin"},
		"LargeBehind": {"", []field{file("x", large), place("f/large.bin")}, "f/large.bin"},
		"QueryFirst":  {"q/first.bin", []field{place("f/other.bin"), file("x", small)}, "q/first.bin"},
		"NameIsAPath": {"", []field{file("../../etc/name.bin", small)}, "name.bin"},
		"IntoFolder":  {"q/into/", []field{file("own.bin", small)}, "q/into/own.bin"},
		"FolderLater": {"", []field{file("own.bin", small), place("f/into/")}, "f/into/own.bin"},
		"LargeFolder": {"", []field{file("own.bin", large), place("f/large/")}, "f/large/own.bin"},
		"StaysInside": {"q/../inside.bin", []field{file("x", small)}, "inside.bin"},
		"OtherFields": {"", []field{{name: "more", value: "1"}, file("y.bin", small)}, "y.bin"},
	} {
		t.Run(name, func(t *testing.T) {
			b := *b
			b.t = t
			body, kind := form(c.fields...)
			target := "/sandbox/" + id + "/upload?file_path=" + url.QueryEscape(c.query)
			got := get[map[string]string](&b, http.StatusOK, "POST", target, body, "Content-Type", kind)
			if diff := cmp.Diff(map[string]string{"file_path": c.want}, got); diff != "" {
				t.Fatal(diff)
			}
			answer, content := b.do("GET", "/sandbox/"+id+"/download/"+url.PathEscape(c.want), nil)
			want := c.fields[slices.IndexFunc(c.fields, func(f field) bool { return f.file != "" })].value
			if answer.StatusCode != http.StatusOK || string(content) != want {
				t.Errorf("status %d, %d bytes of %d", answer.StatusCode, len(content), len(want))
			}
			if kind := answer.Header.Get("Content-Disposition"); !strings.HasPrefix(kind, "attachment") {
				t.Errorf("disposition %q", kind)
			}
		})
	}
}

func TestNotebookFilesStayInTheSandbox(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.notebook()
	large := strings.Repeat("x", 5<<20)
	for _, path := range []string{"../../escaped.txt", "/tmp/escaped.txt", "a/../../../escaped.txt"} {
		for _, fields := range [][]field{
			{{name: "file_path", value: path}, {name: "file", file: "x", value: "x"}},
			{{name: "file", file: "x", value: large}, {name: "file_path", value: path}},
		} {
			body, kind := form(fields...)
			testbed.Diff(t, path, "File access denied", b.detail(http.StatusForbidden, "POST", "/sandbox/"+id+"/upload", body, "Content-Type", kind))
		}
		testbed.Diff(t, path, "File access denied", b.detail(http.StatusForbidden, "GET", "/sandbox/"+id+"/download/"+url.PathEscape(path), nil))
	}
	testbed.Diff(t, "missing", "File not found", b.detail(http.StatusNotFound, "GET", "/sandbox/"+id+"/download/nope.txt", nil))
	if _, content := b.do("GET", "/sandbox/"+id+"/files", nil); strings.TrimSpace(string(content)) != "[]" {
		t.Errorf("something is left: %s", content)
	}
	if answer, content := b.do("GET", "/sandbox/"+id+"/download/nope.txt", nil, "Range", "bytes=0-1"); answer.StatusCode != http.StatusNotFound {
		t.Errorf("a range of a missing file: %d %s", answer.StatusCode, content)
	}
}

func TestNotebookListsFilesAndSandboxes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id, over := b.notebook(), b.notebook()
	b.do("POST", "/sandbox/"+over+"/close", nil)
	body, kind := form(field{name: "file", file: "a.csv", value: "x\n"})
	b.do("POST", "/sandbox/"+id+"/upload", body, "Content-Type", kind)
	if _, content := b.do("GET", "/sandbox/"+id+"/files", nil); strings.TrimSpace(string(content)) != `[{"path":"a.csv","size":2}]` {
		t.Errorf("files: %s", content)
	}
	listed := get[map[string]map[string]float64](b, http.StatusOK, "GET", "/sandboxes", nil)
	if created := listed[id]["created_at"]; len(listed) != 1 || time.Since(time.UnixMicro(int64(created*1e6))).Abs() > time.Hour {
		t.Errorf("sandboxes: %v", listed)
	}
}

// A list of files is a page of the agent at most: of several pages that it gathered, only the last was charged.
func TestNotebookListsFilesUpToAPage(t *testing.T) {
	t.Parallel()
	const longest = 4000
	for size, want := range map[int]int{pageBytes - 1: 200, pageBytes: 200, pageBytes + 1: 413} {
		b := setup(t)
		id := b.notebook()
		for left := size; left > 0; left -= longest {
			b.worker.files.files[fmt.Sprintf("%0*d", min(left, longest), left)] = nil
		}
		if answer, content := b.do("GET", "/sandbox/"+id+"/files", nil); answer.StatusCode != want || want == 413 && !strings.Contains(string(content), "list a directory below") {
			t.Errorf("%d bytes of paths: %d %.300s", size, answer.StatusCode, content)
		}
		_, content := b.do("POST", "/mcp", message("tools/call", map[string]any{"name": "list_files", "arguments": map[string]any{"sandbox_id": id}}),
			"Content-Type", "application/json", "Accept", "application/json, text/event-stream")
		if !strings.Contains(string(content), "These are the first 1000.") {
			t.Errorf("%d bytes of paths, by the tool: %.300s", size, content)
		}
	}
}

func TestNotebookInstalls(t *testing.T) {
	t.Parallel()
	b := setup(t)
	target := "/sandbox/" + b.notebook() + "/install"
	type answer struct {
		Success                 bool
		Stdout, Stderr, Message string
	}
	ok := get[answer](b, http.StatusOK, "POST", target, `{"package_name":"humanize"}`, "Content-Type", jsonKind)
	if !ok.Success || !strings.Contains(ok.Message, "humanize") {
		t.Errorf("install: %+v", ok)
	}
	for _, name := range []string{"missing", "-r/etc/passwd", "--index-url=http://127.0.0.1:9/ six", ""} {
		got := get[answer](b, http.StatusOK, "POST", target, fmt.Sprintf(`{"package_name":%q}`, name), "Content-Type", jsonKind)
		if got.Success || got.Message == "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestNotebookNeedsAKey(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	id := b.notebook("X-API-Key", key)
	b.detail(http.StatusUnauthorized, "POST", "/sandbox/create", nil)
	b.detail(http.StatusUnauthorized, "GET", "/sandboxes", nil)
	testbed.Diff(t, "another tenant's", "Sandbox not found", b.detail(http.StatusNotFound, "GET", "/sandbox/"+id+"/files", nil, "X-API-Key", otherKey))
	if got := get[map[string]any](b, http.StatusOK, "GET", "/sandboxes", nil, "X-API-Key", otherKey); len(got) != 0 {
		t.Errorf("another tenant sees %v", got)
	}
	if got := get[map[string]string](b, http.StatusOK, "GET", "/health", nil); got["status"] != "healthy" {
		t.Errorf("health: %v", got)
	}
}
