package api_test

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// setupFS is setupLive with an agent that serves files anywhere, a sandbox and an empty directory.
func setupFS(t *testing.T, options ...option) (f *liveFarm, base, dir string) {
	t.Helper()
	dir = t.TempDir() // removed after the agent has ended, which may still be at an upload that broke off
	f = setupLiveAgent(t, agenttest.StartWithFiles(t), options...)
	return f, "/v1/sandboxes/" + f.sandbox() + "/fs", dir
}

const rawType = "application/octet-stream"

func TestFilesAnywhereOverHTTP(t *testing.T) {
	t.Parallel()
	f, base, dir := setupFS(t)
	file := base + dir + "/a/" + url.PathEscape("ü %.txt")
	made := get[wire.FSEntry](f.bundle, http.StatusCreated, "PUT", file+"?mode=0640", "content", "Content-Type", rawType)
	if made.Path != dir+"/a/ü %.txt" || made.Size != 7 || made.Mode != "0640" || made.UID != os.Getuid() || made.Target != nil || made.ETag == "" {
		t.Errorf("%+v", made)
	}
	tag := `"` + made.ETag + `"`
	head, _ := f.do("HEAD", file, nil)
	for name, want := range map[string]string{"ETag": tag, "X-File-Mode": "0640", "X-File-Type": "file", "Content-Length": "7"} {
		testbed.Diff(t, name, want, head.Header.Get(name))
	}
	for name, c := range map[string]struct {
		headers []string
		status  int
		body    string
	}{
		"whole":           {nil, 200, "content"},
		"range":           {[]string{"Range", "bytes=2-4"}, 206, "nte"},
		"end":             {[]string{"Range", "bytes=-2"}, 206, "nt"},
		"this version":    {[]string{"If-None-Match", tag}, 304, ""},
		"its packed form": {[]string{"If-None-Match", `"` + made.ETag + `-gzip"`}, 304, ""},
		"another version": {[]string{"If-None-Match", `"x"`}, 200, "content"},
		"if range":        {[]string{"Range", "bytes=2-4", "If-Range", tag}, 206, "nte"},
		"old range":       {[]string{"Range", "bytes=2-4", "If-Range", `"x"`}, 200, "content"},
	} {
		if answer, body := f.do("GET", file, nil, c.headers...); answer.StatusCode != c.status || string(body) != c.body {
			t.Errorf("%s: %d %q", name, answer.StatusCode, body)
		}
	}
	f.problem(farm.CodeConflict, http.StatusPreconditionFailed, "GET", file, nil, "If-Match", `"x"`)
	f.problem(farm.CodeInvalid, http.StatusRequestedRangeNotSatisfiable, "GET", file, nil, "Range", "bytes=7-")
	f.problem(farm.CodeInvalid, http.StatusBadRequest, "GET", file, nil, "If-Match", "x")
	f.problem(farm.CodeConflict, http.StatusPreconditionFailed, "PUT", file, "x", "If-None-Match", "*", "Content-Type", rawType)
	f.problem(farm.CodeConflict, http.StatusPreconditionFailed, "PUT", file, "x", "If-Match", `"x"`, "Content-Type", rawType)
	f.problem(farm.CodeInvalid, http.StatusBadRequest, "PUT", file, "x", "If-Match", `"x", "y"`, "Content-Type", rawType)
	get[wire.FSEntry](f.bundle, http.StatusCreated, "PUT", file+"?append=1", "!", "Content-Type", rawType)
	get[wire.FSEntry](f.bundle, http.StatusCreated, "PUT", file+"?offset=0", "CON", "Content-Type", rawType)
	if _, body := f.do("GET", file, nil); string(body) != "CONtent!" {
		t.Errorf("%q", body)
	}
	for _, at := range []string{"1970-01-01T00:00:00Z", "2262-04-11T23:47:16Z", "2021-03-04T05:06:07.123456Z"} {
		if got := get[wire.FSEntry](f.bundle, http.StatusOK, "PATCH", file, map[string]string{"modified_at": at}); got.ModifiedAt.Format(time.RFC3339Nano) != at {
			t.Errorf("modified_at %s: %+v", at, got)
		}
	}
	if got := get[wire.FSEntry](f.bundle, http.StatusOK, "PATCH", file, map[string]string{"mode": "600"}); got.Mode != "0600" {
		t.Errorf("%+v", got)
	}
	get[wire.FSEntry](f.bundle, http.StatusOK, "POST", base+"/copy", map[string]string{"from": dir + "/a", "to": dir + "/b"})
	get[wire.FSEntry](f.bundle, http.StatusOK, "POST", base+"/move", map[string]string{"from": dir + "/b", "to": dir + "/c"})
	link := get[wire.FSEntry](f.bundle, http.StatusCreated, "POST", base+"/link", map[string]string{"path": dir + "/l", "target": "c"})
	if link.Target == nil || *link.Target != "c" {
		t.Errorf("%+v", link)
	}
	get[wire.FSEntry](f.bundle, http.StatusCreated, "PUT", base+dir+"/d/e/", nil)
	var names []string
	for cursor := ""; ; {
		page := get[wire.FSListing](f.bundle, http.StatusOK, "GET", base+"?depth=9&limit=2&cursor="+cursor+"&path="+url.QueryEscape(dir), nil)
		for _, e := range page.Items {
			names = append(names, strings.TrimPrefix(e.Path, dir))
		}
		if cursor = string(page.NextCursor); cursor == "" {
			break
		}
	}
	if got := strings.Join(names, " "); got != "/a /a/ü %.txt /c /c/ü %.txt /d /d/e /l" {
		t.Errorf("%q", got)
	}
	if answer, _ := f.do("DELETE", base+dir+"/a", nil); answer.StatusCode != http.StatusNoContent {
		t.Errorf("delete: %d", answer.StatusCode)
	}
	f.problem(farm.CodeNotFound, http.StatusNotFound, "GET", file, nil)
}

func TestBadRequestsForFilesAnywhere(t *testing.T) {
	t.Parallel()
	f, base, dir := setupFS(t)
	raw := []string{"Content-Type", rawType}
	for name, c := range map[string]struct {
		code         farm.Code
		status       int
		method, path string
		body         any
		headers      []string
	}{
		"offset and append":        {farm.CodeInvalid, 400, "PUT", dir + "/f?offset=0&append=1", "x", raw},
		"negative offset":          {farm.CodeInvalid, 400, "PUT", dir + "/f?offset=-1", "x", raw},
		"mode 8":                   {farm.CodeInvalid, 422, "PUT", dir + "/f?mode=8", "x", raw},
		"mode 10000":               {farm.CodeInvalid, 422, "PATCH", dir, map[string]string{"mode": "10000"}, nil},
		"no mode":                  {farm.CodeInvalid, 422, "PATCH", dir, map[string]string{"mode": ""}, nil},
		"no change":                {farm.CodeInvalid, 422, "PATCH", dir, map[string]string{}, nil},
		"time before 1970":         {farm.CodeInvalid, 422, "PATCH", dir, map[string]string{"modified_at": "1969-12-31T23:59:59Z"}, nil},
		"time after 2262":          {farm.CodeInvalid, 422, "PATCH", dir, map[string]string{"modified_at": "2262-04-11T23:47:17Z"}, nil},
		"dots":                     {farm.CodeInvalid, 422, "GET", dir + "/%2e%2e/x", nil, nil},
		"nul":                      {farm.CodeInvalid, 422, "GET", dir + "/%00", nil, nil},
		"directory":                {farm.CodeConflict, 409, "GET", dir, nil, nil},
		"deflate":                  {farm.CodeInvalid, 415, "PUT", dir + "/f", "x", []string{"Content-Encoding", "deflate"}},
		"not gzip":                 {farm.CodeInvalid, 400, "PUT", dir + "/f", "xxxxxxxxxxxxxxxxxxxxx", []string{"Content-Encoding", "gzip"}},
		"depth -1":                 {farm.CodeInvalid, 400, "GET", "?depth=-1", nil, nil},
		"depth too large":          {farm.CodeInvalid, 400, "GET", "?depth=1001", nil, nil},
		"limit too large":          {farm.CodeInvalid, 400, "GET", "?limit=10001", nil, nil},
		"no from":                  {farm.CodeInvalid, 422, "POST", "/copy", map[string]string{"from": "", "to": "x"}, nil},
		"no target":                {farm.CodeInvalid, 422, "POST", "/link", map[string]string{"path": "x", "target": ""}, nil},
		"long target":              {farm.CodeInvalid, 422, "POST", "/link", map[string]string{"path": "x", "target": strings.Repeat("t", farm.MaxLinkTarget+1)}, nil},
		"condition of DELETE":      {farm.CodeInvalid, 400, "DELETE", dir, nil, []string{"If-Match", `"x"`}},
		"condition of a directory": {farm.CodeInvalid, 400, "PUT", dir + "/d/", nil, []string{"If-None-Match", "*"}},
		"content of a directory":   {farm.CodeInvalid, 400, "PUT", dir + "/d/", "x", raw},
		"not a tar":                {farm.CodeInvalid, 415, "POST", "?path=" + dir, "x", raw},
		"root":                     {farm.CodeConflict, 409, "DELETE", "/", nil, nil},
	} {
		answer, content := f.do(c.method, base+c.path, c.body, c.headers...)
		if answer.StatusCode != c.status || !bytes.Contains(content, []byte(`"`+c.code+`"`)) {
			t.Errorf("%s: %d %s", name, answer.StatusCode, content)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("a refused write left %v, %v", left, err)
	}
	for _, depth := range []string{"999", "1000"} {
		get[wire.FSListing](f.bundle, http.StatusOK, "GET", base+"?depth="+depth+"&path="+url.QueryEscape(dir), nil)
	}
	get[wire.FSEntry](f.bundle, http.StatusCreated, "POST", base+"/link", map[string]string{"path": dir + "/long", "target": strings.Repeat("t", farm.MaxLinkTarget)})
}

func packed(t *testing.T, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(content)
	testbed.Must(t, err)
	testbed.Must(t, w.Close())
	return out.Bytes()
}

func TestGzipBothWays(t *testing.T) {
	t.Parallel()
	f, base, dir := setupFS(t, func(c *api.Config, _ *api.Deps) {
		c.Limits = farm.DefaultLimits()
		c.Limits.MaxFileBytes = 3 * agent.PieceBytes
	})
	text := bytes.Repeat([]byte("all work and no play "), agent.PieceBytes/8) // of several pieces
	made := get[wire.FSEntry](f.bundle, http.StatusCreated, "PUT", base+dir+"/f.txt", packed(t, text), "Content-Type", rawType, "Content-Encoding", "gzip")
	if made.Size != int64(len(text)) {
		t.Errorf("%+v", made)
	}
	answer, body := f.do("GET", base+dir+"/f.txt", nil, "Accept-Encoding", "gzip")
	if answer.Header.Get("Content-Encoding") != "gzip" || answer.Header.Get("ETag") != `"`+made.ETag+`-gzip"` || answer.Header.Get("Vary") != "Accept-Encoding" || len(body) > len(text)/50 {
		t.Fatalf("%v, %d bytes", answer.Header, len(body))
	}
	unpack, err := gzip.NewReader(bytes.NewReader(body))
	testbed.Must(t, err)
	if got, err := io.ReadAll(unpack); err != nil || !bytes.Equal(got, text) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	for _, encodings := range []string{"identity", "gzip;q=0", "br"} {
		if answer, body := f.do("GET", base+dir+"/f.txt", nil, "Accept-Encoding", encodings); answer.Header.Get("Content-Encoding") != "" || !bytes.Equal(body, text) {
			t.Errorf("%s: %v, %d bytes", encodings, answer.Header, len(body))
		}
	}
	if answer, _ := f.do("GET", base+dir+"/f.txt", nil, "Accept-Encoding", "gzip", "Range", "bytes=0-5000"); answer.Header.Get("Content-Encoding") != "" || answer.ContentLength != 5001 {
		t.Errorf("a part: %v", answer.Header)
	}
	// A short body that unpacks to more than a file may have.
	for n, status := range map[int]int{3*agent.PieceBytes - 1: 201, 3 * agent.PieceBytes: 201, 3*agent.PieceBytes + 1: 413} {
		answer, content := f.do("PUT", base+dir+"/bomb", packed(t, make([]byte, n)), "Content-Type", rawType, "Content-Encoding", "gzip")
		if answer.StatusCode != status {
			t.Errorf("%d bytes: %d %s", n, answer.StatusCode, content)
		}
	}
	f.problem(farm.CodeInvalid, http.StatusBadRequest, "PUT", base+dir+"/cut", packed(t, text)[:50], "Content-Type", rawType, "Content-Encoding", "gzip")
	if _, err := os.Stat(filepath.Join(dir, "cut")); err == nil {
		t.Error("a broken upload made a file")
	}
}

func TestATarAnywhereOverHTTP(t *testing.T) {
	t.Parallel()
	large := bytes.Repeat([]byte("0123456789abcdef"), agent.PieceBytes/6)
	f, base, dir := setupFS(t, func(c *api.Config, _ *api.Deps) {
		c.Limits = farm.DefaultLimits()
		c.Limits.MaxFileBytes = int64(2 * len(large))
	})
	testbed.Must(t, os.MkdirAll(filepath.Join(dir, "from", "sub"), 0o700))
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "from", "sub", "large"), large, 0o600))
	answer, tar := f.do("GET", base+dir+"/from?tar=1", nil, "Accept-Encoding", "identity")
	if answer.StatusCode != http.StatusOK || len(tar)%512 != 0 || answer.Trailer.Get("Sandfarm-Left-Out") != "0" {
		t.Fatalf("%d, %d bytes, trailer %v", answer.StatusCode, len(tar), answer.Trailer)
	}
	testbed.Must(t, syscall.Mkfifo(filepath.Join(dir, "from", "pipe"), 0o600))
	hole := filepath.Join(dir, "from", "sub", "hole") // it costs its sandbox nothing
	testbed.Must(t, os.WriteFile(hole, nil, 0o600))
	testbed.Must(t, os.Truncate(hole, 1<<42))
	for _, kind := range []string{"tar", "zip"} {
		if answer, _ := f.do("GET", base+dir+"/from?"+kind+"=1", nil); answer.Trailer.Get("Sandfarm-Left-Out") != "2" {
			t.Errorf("a pipe and a file that is too large are missing in the %s, and its trailer is %v", kind, answer.Trailer)
		}
	}
	made := get[wire.FSEntry](f.bundle, http.StatusCreated, "POST", base+"?path="+url.QueryEscape(dir+"/to"), packed(t, tar), "Content-Type", "application/x-tar", "Content-Encoding", "gzip")
	if made.Path != dir+"/to" || made.Type != "dir" {
		t.Errorf("%+v", made)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "to", "sub", "large")); err != nil || !bytes.Equal(got, large) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestADirectoryAsAZip(t *testing.T) {
	t.Parallel()
	f, base, dir := setupFS(t)
	large := bytes.Repeat([]byte("0123456789abcdef"), agent.PieceBytes/6)
	testbed.Must(t, os.MkdirAll(filepath.Join(dir, "from", "sub", "empty"), 0o700))
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "from", "sub", "größe"), large, 0o640))
	testbed.Must(t, os.Symlink("sub", filepath.Join(dir, "from", "link")))
	answer, content := f.do("GET", base+dir+"/from?zip=1", nil)
	if answer.StatusCode != http.StatusOK || !strings.Contains(answer.Header.Get("Content-Disposition"), `filename="from.zip"`) {
		t.Fatalf("%d %v", answer.StatusCode, answer.Header)
	}
	if len(content) > len(large)/4 {
		t.Errorf("the zip has %d bytes of %d: it is not compressed", len(content), len(large))
	}
	files, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
	testbed.Must(t, err)
	got := map[string]string{}
	for _, one := range files.File {
		r, err := one.Open()
		testbed.Must(t, err)
		text, err := io.ReadAll(r)
		testbed.Must(t, err)
		got[one.Name] = fmt.Sprintf("%s %x", one.Mode(), sha256.Sum256(text))
	}
	hash := func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }
	want := map[string]string{
		"sub/": "drwx------ " + hash(""), "sub/empty/": "drwx------ " + hash(""),
		"sub/größe": "-rw-r----- " + hash(string(large)), "link": "Lrwxrwxrwx " + hash("sub"),
	}
	testbed.Diff(t, "", want, got)
	f.problem(farm.CodeInvalid, http.StatusBadRequest, "GET", base+dir+"/from?zip=1&tar=1", nil)
}

// A key that may only read reaches nothing outside the workspace: the variables of programs are in /proc.
func TestFilesAnywhereNeedTheScopeRun(t *testing.T) {
	t.Parallel()
	b := setup(t, withScopes)
	for _, path := range []string{"", "/etc/hostname", "/etc?tar=1"} {
		b.problem(farm.CodeUnauthorized, http.StatusForbidden, "GET", "/v1/sandboxes/sbx_1/fs"+path, nil, bearer("read")...)
	}
}
