package mcp_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	protocol "github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// local is the caller's own machine.
type local struct{ files map[string]*bytes.Buffer }

func (l *local) Open(path string) (io.ReadCloser, int64, error) {
	f := l.files[path]
	if f == nil {
		return nil, 0, errors.New("no such file")
	}
	return io.NopCloser(bytes.NewReader(f.Bytes())), int64(f.Len()), nil
}

func (l *local) Create(path string) (io.WriteCloser, error) {
	if strings.HasPrefix(path, "/root/") {
		return nil, errors.New("permission denied")
	}
	l.files[path] = &bytes.Buffer{}
	return struct {
		io.Writer
		io.Closer
	}{l.files[path], io.NopCloser(nil)}, nil
}

func here(l *local) func(*mcp.Options) {
	return func(o *mcp.Options) { o.Local, o.Limits.LocalFileBytes = l, 2000 }
}

func TestUpload(t *testing.T) {
	t.Parallel()
	machine := &local{files: map[string]*bytes.Buffer{"/home/me/in.bin": bytes.NewBufferString("\x00local")}}
	for name, c := range map[string]struct {
		args    map[string]any
		path    string
		content string
	}{
		"Text":      {map[string]any{"dest_path": "in/städte.csv", "content": "n\n1\n"}, "in/städte.csv", "n\n1\n"},
		"EmptyText": {map[string]any{"dest_path": "empty", "content": ""}, "empty", ""},
		"Bytes":     {map[string]any{"dest_path": "raw", "content_base64": "AP+A"}, "raw", "\x00\xff\x80"},
		"Named":     {map[string]any{"dest_path": "in/", "content": "x", "local_file_path": "C:\\data\\a.csv"}, "in/a.csv", "x"},
		"Local":     {map[string]any{"local_file_path": "/home/me/in.bin"}, "in.bin", "\x00local"},
		"LocalInto": {map[string]any{"local_file_path": "/home/me/in.bin", "dest_path": "d/"}, "d/in.bin", "\x00local"},
		"LocalAs":   {map[string]any{"local_file_path": "/home/me/in.bin", "dest_path": "other"}, "other", "\x00local"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fakeFarm{WriteFunc: func(_ context.Context, id, path string, content io.Reader, size int64) (wire.FileEntry, error) {
				got, err := io.ReadAll(content)
				if err != nil || string(got) != c.content || size != int64(len(got)) || path != c.path || id != "sbx_1" {
					t.Errorf("%v: %q, %d bytes to %s", err, got, size, path)
				}
				return wire.FileEntry{Path: path}, nil
			}}
			c.args["sandbox_id"] = "sbx_1"
			r := setup(t, f, here(machine)).call("upload_file_to_sandbox", c.args)
			if r.IsError || field(t, r, "path") != c.path || field(t, r, "size") != float64(len(c.content)) || len(field(t, r, "sha256").(string)) != 64 {
				t.Errorf("%s %v", textOf(r), r.StructuredContent)
			}
		})
	}
	r := setup(t, &fakeFarm{}, here(machine)).call("upload_file_to_sandbox", map[string]any{"sandbox_id": "sbx_1", "local_file_path": "/nowhere"})
	if !r.IsError || !strings.Contains(textOf(r), "no such file") || !strings.Contains(textOf(r), "local_file_path") {
		t.Error(textOf(r))
	}
}

// A letter and a space, again and again, took nine times its bytes.
func TestWhiteSpaceInBase64TakesNoLists(t *testing.T) { // not parallel: it counts what the process allocates
	for unit, want := range map[string]string{"YWJj": "abc", "Y W J j ": "abc", "YW\u00a0J\r\n\tj": "abc", "YWJj\n": "abc"} {
		const times = 1 << 17
		text, before, after := strings.Repeat(unit, times), runtime.MemStats{}, runtime.MemStats{}
		runtime.ReadMemStats(&before)
		got, err := mcp.DecodeBase64(mcp.Arguments{"x": text}, "x")
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; err != nil || string(got) != strings.Repeat(want, times) || took > uint64(len(text))*3 {
			t.Errorf("%q: %d bytes for %d bytes, %v", unit, took, len(text), err)
		}
	}
}

// reading makes a farm with one file.
func reading(path string, content []byte) *fakeFarm {
	return &fakeFarm{ReadFunc: func(_ context.Context, _, _ string, limit int64) (mcp.File, error) {
		f := mcp.File{Entry: wire.FileEntry{Path: path, Size: int64(len(content)), Type: "file"}, Content: content}
		if f.Entry.Size > limit {
			f.Content = nil
		}
		return f, nil
	}}
}

func TestDownload(t *testing.T) {
	t.Parallel()
	limits := func(o *mcp.Options) { o.Limits.InlineText, o.Limits.ImageBytes = 1000, 2000 }
	repeat := func(n int) []byte { return bytes.Repeat([]byte{'y'}, n) }
	for name, c := range map[string]struct {
		path    string
		content []byte
		text    bool // the content is part of the text
		image   bool
		kind    string
	}{
		"Text":          {"in/a.csv", []byte("n\n1\n"), true, false, "text/csv"},
		"TextAtLimit":   {"a.txt", repeat(1000), true, false, "text/plain"},
		"TextOver":      {"a.txt", repeat(1001), false, false, "text/plain"},
		"TextBelow":     {"a.txt", repeat(999), true, false, "text/plain"},
		"Empty":         {"a.txt", []byte{}, false, false, "text/plain"},
		"NoExtension":   {"Makefile", []byte("all:"), true, false, "text/plain"},
		"Bytes":         {"a.bin", []byte{0, 1, 255}, false, false, "application/octet-stream"},
		"LiesAboutIt":   {"a.txt", []byte{0, 255}, false, false, "text/plain"},
		"Image":         {"a.png", []byte("\x89PNG\x00"), false, true, "image/png"},
		"ImageAtLimit":  {"a.png", repeat(2000), false, true, "image/png"},
		"ImageOver":     {"a.png", repeat(2001), false, false, "image/png"},
		"SpacesInPaths": {"a b/ü#?.csv", []byte("1"), true, false, "text/csv"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, reading(c.path, c.content), limits).call("download_file", map[string]any{"sandbox_id": "sbx_1", "file_path": c.path})
			want := map[string]any{"sandbox_id": "sbx_1", "path": c.path, "size": float64(len(c.content)), "content_type": c.kind, "url": "http://store.test/" + c.path}
			if diff := cmp.Diff(want, r.StructuredContent); diff != "" {
				t.Error(diff)
			}
			if got := strings.Contains(textOf(r), "content:\n"+string(c.content)); len(c.content) > 0 && got != c.text || !strings.Contains(textOf(r), "http://store.test/") {
				t.Errorf("the content is in the text: %t, want %t", got, c.text)
			}
			if got := len(blocksOf[protocol.ImageContent](r)) == 1; got != c.image {
				t.Errorf("it is an image: %t, want %t", got, c.image)
			}
			links := blocksOf[protocol.ResourceLink](r)
			if len(links) != 1 || *links[0].Size != int64(len(c.content)) || links[0].MIMEType != c.kind || strings.ContainsAny(links[0].URI, " #?ü") {
				t.Errorf("%+v", links)
			}
		})
	}
}

func TestDownloadToTheCallersMachine(t *testing.T) {
	t.Parallel()
	for size, ok := range map[int]bool{1999: true, 2000: true, 2001: false} {
		machine := &local{files: map[string]*bytes.Buffer{}}
		content := bytes.Repeat([]byte{0}, size)
		set := func(o *mcp.Options) { here(machine)(o); o.Limits.InlineText, o.Limits.ImageBytes = 10, 10 }
		r := setup(t, reading("d/a.bin", content), set).call("download_file", map[string]any{"sandbox_id": "sbx_1", "file_path": "d/a.bin", "local_dest_path": "/home/me/"})
		if r.IsError == ok || ok && (field(t, r, "local_path") != "/home/me/a.bin" || !bytes.Equal(machine.files["/home/me/a.bin"].Bytes(), content)) {
			t.Errorf("%d bytes: %s", size, textOf(r))
		}
	}
	machine := &local{files: map[string]*bytes.Buffer{}}
	r := setup(t, reading("a", []byte("1")), here(machine)).call("download_file", map[string]any{"sandbox_id": "sbx_1", "file_path": "a", "local_dest_path": "/root/x"})
	if !r.IsError || !strings.Contains(textOf(r), "permission denied") {
		t.Error(textOf(r))
	}
	r = setup(t, reading("a", []byte("1"))).call("download_file", map[string]any{"sandbox_id": "sbx_1", "file_path": "a", "local_dest_path": "x"})
	if !r.IsError || !strings.Contains(textOf(r), "local_dest_path") {
		t.Error(textOf(r))
	}
}

func TestPathsAreNamedByTheToolsOwnParameter(t *testing.T) {
	t.Parallel()
	wrong := farm.Invalidf("path %q holds \"..\"", "../x")
	f := &fakeFarm{
		ReadFunc: func(context.Context, string, string, int64) (mcp.File, error) { return mcp.File{}, wrong },
		WriteFunc: func(context.Context, string, string, io.Reader, int64) (wire.FileEntry, error) {
			return wire.FileEntry{}, wrong
		},
	}
	b := setup(t, f)
	if r := b.call("download_file", map[string]any{"sandbox_id": "s", "file_path": "../x"}); !strings.Contains(textOf(r), "file_path: path") {
		t.Error(textOf(r))
	}
	if r := b.call("upload_file_to_sandbox", map[string]any{"sandbox_id": "s", "dest_path": "../x", "content": ""}); !strings.Contains(textOf(r), "dest_path: path") {
		t.Error(textOf(r))
	}
}

func TestListFiles(t *testing.T) {
	t.Parallel()
	for count, want := range map[int]int{0: 0, 2: 2, 3: 3, 4: 3} {
		f := &fakeFarm{FilesFunc: func(_ context.Context, _, path string, recursive bool, limit int) ([]wire.FileEntry, error) {
			list := []wire.FileEntry{}
			for i := range count {
				list = append(list, wire.FileEntry{Path: fmt.Sprintf("%s/%d", path, i), Size: 5, Mode: "0644", Type: []string{"file", "dir"}[i%2]})
			}
			if path != "in" || !recursive || limit != 4 { // one more than is shown
				return nil, farm.Invalidf("path is %q, recursive %t, limit %d", path, recursive, limit)
			}
			return list, nil
		}}
		r := setup(t, f, func(o *mcp.Options) { o.Limits.ListedFiles = 3 }).call("list_files", map[string]any{"sandbox_id": "sbx_1", "path": "in", "recursive": true})
		if r.IsError || len(field(t, r, "files").([]any)) != want || field(t, r, "truncated") != (count > want) {
			t.Errorf("%d: %s", count, textOf(r))
		}
		if says := strings.HasSuffix(textOf(r), "These are the first 3. There are more: list a subdirectory with path."); says != (count > want) {
			t.Errorf("%d: %q", count, textOf(r))
		}
		if count == 2 && textOf(r) != "in/0 (5 bytes)\nin/1/\n" {
			t.Errorf("%q", textOf(r))
		}
	}
}

func TestResources(t *testing.T) {
	t.Parallel()
	const limit, maxText = 3000, 1000
	limits := func(o *mcp.Options) { o.Limits.ResourceBlob, o.Limits.ResourceText = limit, maxText }
	blob := func(n int) []byte { return append([]byte{0xff}, bytes.Repeat([]byte{0}, n-1)...) }
	text := func(n int) []byte { return bytes.Repeat([]byte{'t'}, n) }
	for _, content := range [][]byte{text(maxText - 1), text(maxText), text(maxText + 1), blob(limit - 1), blob(limit), blob(limit + 1), {}} {
		f := reading("in/a b.bin", content)
		f.ArtifactFunc = withArtifacts(wire.ExecuteResult{}, artifact("x", "application/x", content)).ArtifactFunc
		b := setup(t, f, limits)
		tooLarge := len(content) > limit || len(content) > maxText && content[0] == 't'
		for _, uri := range []string{"sandfarm://artifacts/art_x", "sandfarm://sandboxes/sbx_1/files/in/a%20b.bin"} {
			for _, era := range eras() {
				r, err := b.client(era).ReadResource(t.Context(), protocol.ReadResourceRequest{Params: protocol.ReadResourceParams{URI: uri}})
				if tooLarge {
					if err == nil || !strings.Contains(err.Error(), "http://store.test/") {
						t.Errorf("%s, %d bytes: %v", uri, len(content), err)
					}
					continue
				}
				if err != nil || len(r.Contents) != 1 {
					t.Errorf("%s, %d bytes: %v", uri, len(content), err)
					continue
				}
				var got []byte
				switch one := r.Contents[0].(type) {
				case protocol.TextResourceContents:
					got = []byte(one.Text)
				case protocol.BlobResourceContents:
					got, err = base64.StdEncoding.DecodeString(one.Blob)
				}
				if err != nil || !bytes.Equal(got, content) {
					t.Errorf("%s: %d bytes instead of %d, %v", uri, len(got), len(content), err)
				}
			}
		}
	}
}

func TestResourcePathsReachTheFarmUnchanged(t *testing.T) {
	t.Parallel()
	var path string
	f := &fakeFarm{ReadFunc: func(_ context.Context, box, p string, _ int64) (mcp.File, error) {
		path = box + " " + p
		return mcp.File{}, none("file", p)
	}}
	b := setup(t, f)
	for uri, want := range map[string]string{
		"sandfarm://sandboxes/sbx_1/files/a/b.txt":                   "sbx_1 a/b.txt",
		"sandfarm://sandboxes/sbx_1/files/a%20b/%C3%BC%23%3F%25.csv": "sbx_1 a b/ü#?%.csv",
		"sandfarm://sandboxes/sbx_1/files/../../etc/passwd":          "sbx_1 ../../etc/passwd",
		"sandfarm://sandboxes/sbx_1/files/%2e%2e/x":                  "sbx_1 ../x",
	} {
		path = ""
		_, text := b.post(`{"jsonrpc":"2.0","id":5,"method":"resources/read","params":{"uri":"` + uri + `"}}`)
		if path != want || !strings.Contains(text, "-32002") || !strings.Contains(text, `"id":5`) {
			t.Errorf("%s came as %q, want %q: %s", uri, path, want, text)
		}
	}
	for _, uri := range []string{"sandfarm://artifacts/none", "sandfarm://nothing/x", "file:///etc/passwd", ""} {
		if _, text := b.post(`{"jsonrpc":"2.0","id":5,"method":"resources/read","params":{"uri":"` + uri + `"}}`); !strings.Contains(text, `"error"`) {
			t.Errorf("%q: %s", uri, text)
		}
	}
}

// charged sends a message as a request with memory of its own, and gives the answer and what is held when it is written.
func (b *bundle) charged(method, params string) (string, int64) {
	b.t.Helper()
	ctx, hold := budget.New(64<<20).With(b.t.Context(), "a", 0)
	defer hold.Release()
	request := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1/", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, text/event-stream")
	answer := httptest.NewRecorder()
	b.server.Handler().ServeHTTP(answer, request)
	return answer.Body.String(), hold.Bytes()
}

// What is read stays charged to a call as far as it is sent, and a text with what its escapes take.
func TestWhatIsSentStaysCharged(t *testing.T) {
	t.Parallel()
	const size, weight = 100 << 10, 100 << 10 * budget.BodyWeight
	var list []mcp.Artifact
	var displayed []wire.Rich
	for i := range 6 {
		list = append(list, artifact(strconv.Itoa(i), "image/png", bytes.Repeat([]byte{byte(i / 2)}, size))) // each is there twice
		displayed = append(displayed, wire.Rich{Display: i, Mime: "image/png", ArtifactID: list[i].ID, URL: list[i].URL})
	}
	list = append(list, artifact("text", "text/plain", bytes.Repeat([]byte{1}, size)))
	f := withArtifacts(wire.ExecuteResult{Results: displayed}, list...)
	read, reads, refused := f.ArtifactFunc, 0, false
	f.ArtifactFunc = func(ctx context.Context, id string, limit int64) (mcp.Artifact, error) {
		reads++
		if refused {
			return mcp.Artifact{}, farm.Errorf(farm.CodeExhausted, "There is no memory now. Send it again later.")
		}
		a, err := read(ctx, id, limit)
		return a, errors.Join(err, budget.Charge(ctx, int64(len(a.Content))*budget.BodyWeight))
	}
	b := setup(t, f, func(o *mcp.Options) { o.Limits.Images = 2 })
	const run, resource = `{"name":"execute_python_code","arguments":{"sandbox_id":"sbx_1","code":"1"}}`, `{"uri":"sandfarm://artifacts/art_text"}`
	text, held := b.charged("tools/call", run)
	if strings.Count(text, `"type":"image"`) != 2 || reads != 2 || held < 2*weight || held > 2*weight+budget.SmallBytes {
		t.Errorf("%d reads, %d bytes are held for %.200s", reads, held, text)
	}
	if text, held = b.charged("resources/read", resource); !strings.Contains(text, `"text":"\u0001`) || held < weight+2*5*size {
		t.Errorf("%d bytes are held for %.200s", held, text)
	}
	reads, refused = 0, true
	if text, _ = b.charged("tools/call", run); reads != 1 || !strings.Contains(text, "6 pictures are not in this answer") {
		t.Errorf("%d reads for %.200s", reads, text)
	}
	if text, _ = b.charged("resources/read", resource); !strings.Contains(text, `"code":-32603`) || !strings.Contains(text, "again later") {
		t.Errorf("a refusal is %s", text)
	}
}
