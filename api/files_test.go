package api_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestFilesGoInAndOut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	base := "/v1/sandboxes/" + b.sandbox() + "/files/"
	for _, size := range []int{0, 1, 1000, 1001, 64 << 10, 64<<10 + 1, 1 << 20} {
		content := bytes.Repeat([]byte("x"), size)
		for _, body := range []any{content, io.MultiReader(bytes.NewReader(content))} { // with and without a length
			entry := get[wire.FileEntry](b, http.StatusCreated, "PUT", base+"a.bin", body)
			if entry.Path != "a.bin" || entry.Size != int64(size) {
				t.Fatalf("%d bytes: entry %+v", size, entry)
			}
			answer, got := b.do("GET", base+"a.bin", nil)
			if answer.StatusCode != http.StatusOK || !bytes.Equal(got, content) {
				t.Fatalf("%d bytes: status %d, %d bytes", size, answer.StatusCode, len(got))
			}
		}
	}
	// What a read has staged is deleted after its answer, which a client can have read by then. Then it no longer counts.
	testbed.Until(t, "staged objects are deleted", func() bool {
		if _, err := b.store.Trim(t.Context(), "default"); err != nil { // of the uploads, which the worker of this test leaves
			t.Fatal(err)
		}
		stored, err := b.store.Stored(t.Context(), "default")
		return err == nil && stored.Kept == 0 && len(b.blobs.keys()) == 0
	})
	answer, _ := b.do("GET", base+"a.bin", nil, "Accept-Encoding", "identity")
	for header, want := range map[string]string{
		"X-Content-Type-Options": "nosniff", "Content-Disposition": `attachment; filename="a.bin"; filename*=UTF-8''a.bin`, "Last-Modified": "Sun, 09 Sep 2001 01:46:40 GMT",
		"Accept-Ranges": "bytes", "Content-Length": "1048576", "Content-Security-Policy": "sandbox; default-src 'none'",
	} {
		testbed.Diff(t, header, want, answer.Header.Get(header))
	}
	answer, got := b.do("HEAD", base+"a.bin", nil)
	if answer.StatusCode != http.StatusOK || len(got) != 0 || answer.Header.Get("Content-Length") != "1048576" || answer.Header.Get("X-File-Type") != "file" {
		t.Errorf("HEAD: %d %v", answer.StatusCode, answer.Header)
	}
	answer, _ = b.do("GET", base+"a.bin?link=1", nil)
	if answer.StatusCode != http.StatusFound || !strings.HasPrefix(answer.Header.Get("Location"), "http://s3.test/staging/default/job_") {
		t.Errorf("link: %d %s", answer.StatusCode, answer.Header.Get("Location"))
	}
	get[wire.FileEntry](b, http.StatusOK, "POST", strings.TrimSuffix(base, "/")+"/move", `{"from":"a.bin","to":"deep/b.bin"}`)
	get[wire.Job](b, http.StatusOK, "DELETE", base+"deep/b.bin", nil)
	b.problem(farm.CodeNotFound, http.StatusNotFound, "DELETE", base+"deep/b.bin", nil)
	b.problem(farm.CodeNotFound, http.StatusNotFound, "GET", base+"deep/b.bin", nil)
	get[wire.Job](b, http.StatusAccepted, "PUT", base+"later.txt?wait=0", "x")
	if dir := get[wire.FileEntry](b, http.StatusCreated, "PUT", base+"new/dir/", nil); dir.Type != "dir" || dir.Path != "new/dir" {
		t.Errorf("directory %+v", dir)
	}
	if page := get[wire.List[wire.Job]](b, http.StatusOK, "GET", "/v1/jobs?kind=file&limit=200", nil); len(page.Items) != 19 {
		t.Errorf("%d file jobs are listed; reads must not be", len(page.Items))
	}
}

// A browser shows a picture by its link.
func TestALinkHasTheTypeOfItsFile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	base := "/v1/sandboxes/" + b.sandbox() + "/files/"
	for name, want := range map[string]string{"plot.PNG": "image/png", "Makefile": ""} {
		get[wire.FileEntry](b, http.StatusCreated, "PUT", base+name, "x")
		b.do("GET", base+name+"?link=1", nil)
		if got := b.blobs.linked; got.ContentType != want || !got.Inline || got.Filename != name {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestFilesAreListedPageByPage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	base := "/v1/sandboxes/" + b.sandbox() + "/files"
	for _, name := range []string{"a", "b", "ü", "x"} {
		get[wire.FileEntry](b, http.StatusCreated, "PUT", base+"/"+name, "")
	}
	var names []string
	cursor := ""
	for range 2 {
		page := get[wire.Files](b, http.StatusOK, "GET", base+"?limit=3"+cursor, nil)
		for _, e := range page.Items {
			names = append(names, e.Path)
		}
		testbed.Diff(t, "note", "", page.Note)
		cursor = "&cursor=" + string(page.NextCursor)
	}
	if diff := cmp.Diff([]string{"a", "b", "x", "ü"}, names); diff != "" || cursor != "&cursor=" {
		t.Errorf("cursor %q, names (-want +got):\n%s", cursor, diff)
	}
	for _, query := range []string{"?limit=0", "?limit=-1", "?limit=50001", "?limit=x", "?cursor=***", "?cursor=" + strings.Repeat("YQ", 5000), "?cursor=_w"} {
		b.problem(farm.CodeInvalid, http.StatusBadRequest, "GET", base+query, nil)
	}
	get[wire.FileEntry](b, http.StatusCreated, "PUT", base+"/too-long", "12")
	if page := get[wire.Files](b, http.StatusOK, "GET", base, nil); !strings.Contains(page.Note, "more than 4000 bytes") || !strings.Contains(page.Note, ": 2 here") {
		t.Errorf("note %q", page.Note)
	}
}

func TestFileNamesArriveAsSent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	base := "/v1/sandboxes/" + b.sandbox() + "/files/"
	names := map[string]string{
		"donn%C3%A9es-%E4%B8%96.txt": "données-世.txt", "with%20space%20%26%2050%25%20%231%3F.txt": "with space & 50% #1?.txt", "a+b.txt": "a+b.txt",
		"quote'%22s.txt": "quote'\"s.txt", "-dash": "-dash", "deep%2Fer/x": "deep/er/x", "%2Fworkspace%2Fabs.txt": "abs.txt", "a%5Cb": `a\b`,
		"files/files/x": "files/files/x", "%2541": "%41", "./dot/./x": "dot/x", "...": "...", "line%0Abreak": "line\nbreak",
	}
	for sent, want := range names {
		entry := get[wire.FileEntry](b, http.StatusCreated, "PUT", base+sent, "x")
		testbed.Diff(t, fmt.Sprintf("%s became", sent), want, entry.Path)
		if answer, got := b.do("GET", base+sent, nil); string(got) != "x" {
			t.Errorf("%s: status %d", sent, answer.StatusCode)
		}
	}
}

func TestBadFilePaths(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := "/v1/sandboxes/" + b.sandbox()
	for _, path := range []string{
		"../../etc/passwd", "a/../../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "..%2f..%2fetc%2fpasswd", "..%5c..%00", "/etc/passwd", "%2Fetc%2Fpasswd",
		"a%00b", strings.Repeat("n", 256), "..", "", ".", "%FF", strings.Repeat("d/", 2001), "a/..", "%2e%2e%2f",
	} {
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			if p := b.problemOf(method, box+"/files/"+path, "x"); p.Code != "invalid" {
				t.Errorf("%s %s: %+v", method, path, p)
			}
		}
	}
	for _, path := range []string{"../..", "/etc", "a/../../..", "x%00y"} {
		if p := b.problemOf("GET", box+"/files?path="+path, nil); p.Code != "invalid" {
			t.Errorf("list %s: %+v", path, p)
		}
	}
	if p := b.problemOf("GET", box+"/files?recursive=perhaps", nil); p.Code != "invalid" {
		t.Errorf("recursive: %+v", p)
	}
	if len(b.worker.files.files) != 0 {
		t.Fatalf("something was written: %v", b.worker.files.files)
	}
}

// What a write would not honour, or would lose, is refused.
func TestWritesOfFilesThatAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	base := "/v1/sandboxes/" + b.sandbox() + "/files/"
	get[wire.FileEntry](b, http.StatusCreated, "PUT", base+"a", "first")
	for _, headers := range [][]string{{"If-None-Match", "*"}, {"If-Match", `"x"`}, {"If-Unmodified-Since", "Mon, 23 Nov 2026 00:00:00 GMT"}} {
		b.problem(farm.CodeInvalid, http.StatusBadRequest, "PUT", base+"a", "second", headers...)
		b.problem(farm.CodeInvalid, http.StatusBadRequest, "DELETE", base+"a", nil, headers...)
	}
	b.problem(farm.CodeInvalid, http.StatusBadRequest, "PUT", base+"d/", "content of a directory")
	get[wire.FileEntry](b, http.StatusCreated, "PUT", base+"d/", nil)
	if _, got := b.do("GET", base+"a", nil); string(got) != "first" {
		t.Errorf("a refused write left %q", got)
	}
}

func TestRanges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	base := "/v1/sandboxes/" + b.sandbox() + "/files/"
	get[wire.FileEntry](b, http.StatusCreated, "PUT", base+"digits", "0123456789")
	get[wire.FileEntry](b, http.StatusCreated, "PUT", base+"empty", "")
	tests := map[string]struct {
		file, header, want, place string
		status                    int
	}{
		"Inside":         {"digits", "bytes=2-5", "2345", "bytes 2-5/10", 206},
		"Suffix":         {"digits", "bytes=-3", "789", "bytes 7-9/10", 206},
		"ToTheEnd":       {"digits", "bytes=8-", "89", "bytes 8-9/10", 206},
		"Whole":          {"digits", "bytes=0-", "0123456789", "bytes 0-9/10", 206},
		"LastByte":       {"digits", "bytes=9-9", "9", "bytes 9-9/10", 206},
		"EndBeyond":      {"digits", "bytes=8-99", "89", "bytes 8-9/10", 206},
		"EndFarBeyond":   {"digits", "bytes=8-99999999999999999999", "89", "bytes 8-9/10", 206},
		"SuffixBeyond":   {"digits", "bytes=-99", "0123456789", "bytes 0-9/10", 206},
		"Beyond":         {"digits", "bytes=10-", "", "bytes */10", 416},
		"FarBeyond":      {"digits", "bytes=50-60", "", "bytes */10", 416},
		"SuffixOfNone":   {"digits", "bytes=-0", "", "bytes */10", 416},
		"OfEmptyFile":    {"empty", "bytes=0-", "", "bytes */0", 416},
		"OtherUnit":      {"digits", "lines=1-2", "0123456789", "", 200},
		"Backwards":      {"digits", "bytes=5-2", "0123456789", "", 200},
		"Several":        {"digits", "bytes=0-1,3-4", "0123456789", "", 200},
		"Garbage":        {"digits", "bytes=x-y", "0123456789", "", 200},
		"HugeNumber":     {"digits", "bytes=99999999999999999999-", "0123456789", "", 200},
		"NegativeNumber": {"digits", "bytes=--5", "0123456789", "", 200},
	}
	for name, test := range tests {
		answer, got := b.do("GET", base+test.file, nil, "Range", test.header)
		if answer.StatusCode != test.status || answer.Header.Get("Content-Range") != test.place || test.status != 416 && string(got) != test.want {
			t.Errorf("%s: %d %q %q", name, answer.StatusCode, answer.Header.Get("Content-Range"), got)
		}
	}
}

func TestUploadOfManyFiles(t *testing.T) {
	t.Parallel()
	b := setup(t)
	target := "/v1/sandboxes/" + b.sandbox() + "/files"
	form := func(fill func(*multipart.Writer)) (string, string) {
		var body bytes.Buffer
		w := multipart.NewWriter(&body)
		fill(w)
		_ = w.Close()
		return body.String(), w.FormDataContentType()
	}
	file := func(w *multipart.Writer, name, content string) {
		part, _ := w.CreateFormFile("file", name)
		_, _ = io.WriteString(part, content)
	}
	large := strings.Repeat("L", 100_000)
	body, kind := form(func(w *multipart.Writer) {
		file(w, "a.txt", "A")
		file(w, "données 世.txt", "B")
		_ = w.WriteField("path", "sub/dir")
		file(w, "large.bin", large)
	})
	made := get[wire.Files](b, http.StatusCreated, "POST", target+"?path=up", body, "Content-Type", kind)
	got := map[string]int{}
	for _, entry := range made.Items {
		got[entry.Path] = int(entry.Size)
	}
	if diff := cmp.Diff(map[string]int{"up/a.txt": 1, "up/données 世.txt": 1, "up/sub/dir/large.bin": 100_000}, got); diff != "" {
		t.Fatal(diff)
	}
	for name, fill := range map[string]func(*multipart.Writer){
		"Empty":       func(*multipart.Writer) {},
		"Outside":     func(w *multipart.Writer) { file(w, "fine.txt", "x"); file(w, "../evil.txt", "x") },
		"Absolute":    func(w *multipart.Writer) { file(w, "/etc/evil", "x") },
		"OutsidePath": func(w *multipart.Writer) { _ = w.WriteField("path", "../.."); file(w, "a", "x") },
		"Twice":       func(w *multipart.Writer) { file(w, "t", large); file(w, "./t", large) },
		"NoFile":      func(w *multipart.Writer) { _ = w.WriteField("file", "x") },
		"NoName":      func(w *multipart.Writer) { file(w, "", "x") },
	} {
		body, kind := form(fill)
		if p := b.problemOf("POST", target, body, "Content-Type", kind); p.Code != "invalid" {
			t.Errorf("%s: %+v", name, p)
		}
	}
	body, kind = form(func(w *multipart.Writer) { file(w, "cut.txt", large) })
	if p := b.problemOf("POST", target, body[:len(body)-50_000], "Content-Type", kind); p.Code != "invalid" {
		t.Errorf("cut off: %+v", p)
	}
	b.problem(farm.CodeInvalid, http.StatusUnsupportedMediaType, "POST", target, "x", "Content-Type", "text/plain")
	b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", target, "not a tar", "Content-Type", "application/x-tar")
	b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", target, "", "Content-Type", "application/x-tar")
	get[wire.Files](b, http.StatusCreated, "POST", target, "ustar", "Content-Type", "application/x-tar")
	if left := b.blobs.keys(); len(left) != 0 {
		t.Fatalf("staged objects are left: %v", left)
	}
}

func TestFileLimit(t *testing.T) {
	t.Parallel()
	const limit = 200_000
	b := setup(t, func(c *api.Config, _ *api.Deps) { c.Limits = farm.DefaultLimits(); c.Limits.MaxFileBytes = limit })
	base := "/v1/sandboxes/" + b.sandbox() + "/files/"
	for size, status := range map[int]int{limit - 1: 201, limit: 201, limit + 1: 413} {
		content := bytes.Repeat([]byte("x"), size)
		for _, body := range []any{content, io.MultiReader(bytes.NewReader(content))} { // with and without a length
			if answer, text := b.do("PUT", base+"f", body); answer.StatusCode != status {
				t.Errorf("%d bytes: %d %s", size, answer.StatusCode, text)
			}
		}
	}
	if left := b.blobs.keys(); len(left) != 0 {
		t.Fatalf("staged objects are left: %v", left)
	}
}

// Files of the workspace and tars come and go compressed; the limit is that of what they unpack to.
func TestFilesAreCompressedBothWays(t *testing.T) {
	t.Parallel()
	const limit = 200_000
	b := setup(t, func(c *api.Config, _ *api.Deps) {
		c.Limits = farm.DefaultLimits()
		c.Limits.MaxFileBytes = limit
	})
	file := "/v1/sandboxes/" + b.sandbox() + "/files/a.txt"
	for size, status := range map[int]int{limit - 1: http.StatusCreated, limit: http.StatusCreated, limit + 1: http.StatusRequestEntityTooLarge} {
		text := strings.Repeat("0123456789", size/10+1)[:size]
		answer, body := b.do("PUT", file, packed(t, []byte(text)), "Content-Type", "text/plain", "Content-Encoding", "gzip")
		if answer.StatusCode != status {
			t.Fatalf("%d bytes: %s %s", size, answer.Status, body)
		}
		if status != http.StatusCreated {
			continue
		}
		answer, body = b.do("GET", file, nil, "Accept-Encoding", "gzip")
		if answer.Header.Get("Content-Encoding") != "gzip" || answer.Header.Get("Vary") != "Accept-Encoding" || len(body) > size/50 {
			t.Errorf("%d bytes: %v, %d bytes", size, answer.Header, len(body))
		}
		unpack, err := gzip.NewReader(bytes.NewReader(body))
		testbed.Must(t, err)
		if got, err := io.ReadAll(unpack); err != nil || string(got) != text {
			t.Errorf("%d bytes: %d came back, %v", size, len(got), err)
		}
		if answer, body = b.do("GET", file, nil, "Accept-Encoding", "identity"); answer.Header.Get("Content-Encoding") != "" || string(body) != text {
			t.Errorf("as it is: %v, %d bytes", answer.Header, len(body))
		}
		if answer, body = b.do("GET", file, nil, "Accept-Encoding", "gzip", "Range", "bytes=10-19"); answer.Header.Get("Content-Encoding") != "" || string(body) != "0123456789" {
			t.Errorf("a part: %v %q", answer.Header, body)
		}
	}
	b.problem(farm.CodeInvalid, http.StatusBadRequest, "PUT", file, "no gzip at all, but long enough", "Content-Type", "text/plain", "Content-Encoding", "gzip")
	b.problem(farm.CodeInvalid, http.StatusUnsupportedMediaType, "PUT", file, "x", "Content-Type", "text/plain", "Content-Encoding", "br")
	b.problem(farm.CodeInvalid, http.StatusUnsupportedMediaType, "POST", strings.TrimSuffix(file, "/a.txt"), "x", "Content-Type", "application/x-tar", "Content-Encoding", "br")
}

func TestFilesAreShownWhereTheyDoNoHarm(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.sandbox()
	for name, want := range map[string]struct{ kind, shown string }{
		"a.png":             {"image/png", "inline"},
		"a.csv":             {"text/csv; charset=utf-8", "inline"},
		"报告 1 (终).TXT":      {"text/plain; charset=utf-8", "inline"},
		"100%\"+\\a;b.json": {"application/json", "inline"},
		"a.xlsx":            {"application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "inline"},
		"noext":             {"application/octet-stream", "inline"},
		".hidden":           {"application/octet-stream", "inline"},
		"a.html":            {"application/octet-stream", "attachment"},
		"a.SVG":             {"application/octet-stream", "attachment"},
		"a.js":              {"application/octet-stream", "attachment"},
		"a.xhtml":           {"application/octet-stream", "attachment"},
		"a.xml":             {"application/octet-stream", "attachment"},
	} {
		get[wire.FileEntry](b, http.StatusCreated, "PUT", "/v1/sandboxes/"+box+"/files/"+url.PathEscape(name), []byte("x"))
		answer, text := b.do("GET", "/sandbox/file?"+url.Values{"sandbox_id": {box}, "file_path": {"/app/results/" + name}}.Encode(), nil)
		given := answer.Header.Get("Content-Disposition")
		shown, params, err := mime.ParseMediaType(given)
		if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != want.kind || err != nil || shown != want.shown || params["filename"] != name {
			t.Errorf("%s: %d %q %q %v %s", name, answer.StatusCode, answer.Header.Get("Content-Type"), given, err, text)
		}
		if !strings.Contains(given, "; filename*=UTF-8''") || strings.ContainsFunc(given, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%s: %q", name, given)
		}
		answer, _ = b.do("GET", "/v1/sandboxes/"+box+"/files/"+url.PathEscape(name), nil)
		if shown, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Disposition")); shown != "attachment" {
			t.Errorf("%s: /v1 shows it %s", name, shown)
		}
	}
}
