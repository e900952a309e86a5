package client_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestReadFromAnOffset(t *testing.T) {
	t.Parallel()
	content := []byte("0123456789")
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Unix(1_700_000_000, 0), bytes.NewReader(content))
	}))
	files := c.Files("sbx_1")
	for offset, want := range map[int64]string{0: "0123456789", 4: "456789", -3: "789", 10: "", 50: ""} {
		r, err := files.Read(t.Context(), "digits", offset)
		if err != nil {
			t.Errorf("from %d: %v", offset, err)
			continue
		}
		got, err := io.ReadAll(r)
		_ = r.Close()
		if err != nil || string(got) != want {
			t.Errorf("from %d: %q, %v, want %q", offset, got, err, want)
		}
	}
	info, err := files.Stat(t.Context(), "digits")
	if err != nil || info.Size != 10 || !info.ModifiedAt.Equal(time.Unix(1_700_000_000, 0)) {
		t.Errorf("stat: %+v, %v", info, err)
	}
}

func TestListReadsEveryPage(t *testing.T) {
	t.Parallel()
	pages := map[string]wire.Files{
		"":   {Items: []wire.FileEntry{{Path: "a"}, {Path: "b"}}, NextCursor: "Yg"},
		"Yg": {Items: []wire.FileEntry{{Path: "c"}}},
	}
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		page, ok := pages[query.Get("cursor")]
		if !ok || query.Get("path") != "d" || query.Get("recursive") != "true" {
			t.Errorf("query %v", query)
		}
		reply(t, w, http.StatusOK, page)
	}))
	entries, err := c.Files("sbx_1").List(t.Context(), "d", true)
	if err != nil || len(entries) != 3 || entries[2].Path != "c" {
		t.Errorf("entries %+v, %v", entries, err)
	}
}

// A farm whose cursors lead around gets no endless list.
func TestListsEndWhereTheirCursorsRepeat(t *testing.T) {
	t.Parallel()
	following := map[string]wire.Cursor{"": "YQ", "YQ": "Yg", "Yg": "YQ"}
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reply(t, w, http.StatusOK, wire.Files{Items: []wire.FileEntry{{Path: "a"}}, NextCursor: following[r.URL.Query().Get("cursor")]})
	}))
	if entries, err := c.Files("sbx_1").List(t.Context(), "", false); err != nil || len(entries) != 3 {
		t.Errorf("%d entries, %v", len(entries), err)
	}
}

// First asks for no more entries than it returns.
func TestFirstEndsAtItsLimit(t *testing.T) {
	t.Parallel()
	var asked []string
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		asked = append(asked, query.Get("limit"))
		page := wire.Files{Items: []wire.FileEntry{{Path: "a"}, {Path: "b"}}, NextCursor: "Yg"}
		if query.Get("cursor") != "" {
			page = wire.Files{Items: []wire.FileEntry{{Path: "c"}}, NextCursor: "Yw"}
		}
		reply(t, w, http.StatusOK, page)
	}))
	for limit, want := range map[int]string{0: "[]", 2: "[2]", 3: "[3 1]"} {
		asked = nil
		entries, err := c.Files("sbx_1").First(t.Context(), "", false, limit)
		if err != nil || len(entries) != limit || fmt.Sprint(asked) != want {
			t.Errorf("%d entries, %v, limits %v; want %d, limits %s", len(entries), err, asked, limit, want)
		}
	}
}

func TestReadRejectsTheWholeFileForAPart(t *testing.T) {
	t.Parallel()
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("0123456789")) }))
	if _, err := c.Files("sbx_1").Read(t.Context(), "digits", 4); err == nil {
		t.Error("the whole file was taken for its end")
	}
}

func TestWritesStreamAndWaitForTheirJob(t *testing.T) {
	t.Parallel()
	var got []byte
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			got, _ = io.ReadAll(r.Body)
			reply(t, w, http.StatusAccepted, wire.Job{ID: "job_7", Kind: "file", State: "queued"})
			return
		}
		testbed.Diff(t, "asked", "/v1/jobs/job_7", r.URL.Path)
		reply(t, w, http.StatusOK, wire.Job{ID: "job_7", State: "failed", Error: &wire.JobError{Code: "too_large", Message: "the workspace is full"}})
	}))
	content, files := strings.Repeat("x", 1<<20), c.Files("sbx_1")
	for what, write := range map[string]func(io.Reader) error{
		"Write": func(content io.Reader) error { return files.Write(t.Context(), "big", content) },
		"Put":   func(content io.Reader) error { _, err := files.Put(t.Context(), "big", content); return err },
	} {
		if err := write(strings.NewReader(content)); client.CodeOf(err) != "too_large" || !strings.Contains(err.Error(), "the workspace is full") || string(got) != content {
			t.Errorf("%s: %v with %d bytes there, want the job's error and all bytes", what, err, len(got))
		}
	}
}

func TestTarAndMoveAndDelete(t *testing.T) {
	t.Parallel()
	var seen []string
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen = append(seen, r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("Content-Type")+" "+string(body))
		w.WriteHeader(http.StatusCreated)
	}))
	files, ctx := c.Files("sbx_1"), t.Context()
	for _, err := range []error{
		files.PutTar(ctx, "in", strings.NewReader("tar")), files.Move(ctx, "a", "b"), files.Delete(ctx, "c"), files.Mkdir(ctx, "d/e"),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	want := []string{
		"POST /v1/sandboxes/sbx_1/files?path=in application/x-tar tar",
		`POST /v1/sandboxes/sbx_1/files/move application/json {"from":"a","to":"b"}`,
		"DELETE /v1/sandboxes/sbx_1/files/c  ",
		"PUT /v1/sandboxes/sbx_1/files/d/e/  ",
	}
	testbed.Diff(t, "requests", strings.Join(want, "\n"), strings.Join(seen, "\n"))
}

// store is an object store that refuses requests with credentials, as S3 does for presigned links.
func store(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" || r.Header.Get("X-Api-Key") != "" {
			t.Errorf("credentials were sent to %s", r.URL)
		}
		if r.URL.Query().Get("sig") != "fresh" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Header().Set("Content-Disposition", `attachment; filename="a.txt"`)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader("artifact"))
	}))
	t.Cleanup(server.Close)
	return server
}

func TestDownloadRenewsAnOldLinkAndSendsNoCredentials(t *testing.T) {
	t.Parallel()
	s3 := store(t)
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/artifacts/art_1" {
			t.Errorf("asked for %s", r.URL)
		}
		http.Redirect(w, r, s3.URL+"/a.txt?sig=fresh", http.StatusFound)
	}))
	for name, artifact := range map[string]wire.Artifact{
		"FreshLink": {ID: "art_1", URL: s3.URL + "/a.txt?sig=fresh"},
		"OldLink":   {ID: "art_1", URL: s3.URL + "/a.txt?sig=old"},
		"NoLink":    {ID: "art_1"},
	} {
		content, err := c.DownloadFrom(t.Context(), artifact, 3)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := io.ReadAll(content)
		_ = content.Close()
		if err != nil || string(got) != "ifact" || content.Name != "a.txt" {
			t.Errorf("%s: %q called %q, %v", name, got, content.Name, err)
		}
	}
}

func TestLinksAreNotInErrors(t *testing.T) {
	t.Parallel()
	c := setup(t, http.NotFoundHandler())
	for _, at := range []string{store(t).URL, "http://127.0.0.1:1"} {
		if _, err := c.Fetch(t.Context(), at+"/a.txt?sig=hidden", 0); err == nil || strings.Contains(err.Error(), "hidden") {
			t.Errorf("error %v", err)
		}
	}
}

func TestPutGivesTheEntry(t *testing.T) {
	t.Parallel()
	want := wire.FileEntry{Path: "a b/c.txt", Size: 5, Mode: "0644", Type: "file", ModifiedAt: time.Unix(1_700_000_000, 0).UTC()}
	tests := map[string]http.HandlerFunc{
		"AtOnce": func(w http.ResponseWriter, _ *http.Request) { reply(t, w, http.StatusCreated, want) },
		"AsAJob": func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				reply(t, w, http.StatusAccepted, wire.Job{ID: "job_1", State: "running"})
				return
			}
			reply(t, w, http.StatusOK, wire.Job{ID: "job_1", State: "completed", Result: &wire.Result{File: &wire.FileResult{Entries: []wire.FileEntry{want}}}})
		},
	}
	for name, farm := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var uri, sent string
			c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPut {
					content, _ := io.ReadAll(r.Body)
					uri, sent = r.URL.EscapedPath(), string(content)
				}
				farm(w, r)
			}))
			got, err := c.Files("sbx_1").Put(t.Context(), "a b/c.txt", strings.NewReader("hello"))
			if err != nil || sent != "hello" || uri != "/v1/sandboxes/sbx_1/files/a%20b/c.txt" {
				t.Errorf("%v, sent %q to %q", err, sent, uri)
			}
			testbed.Diff(t, "the answer", want, got)
		})
	}
}

func TestOpenKnowsTheSize(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0)
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", at, strings.NewReader("content"))
	}))
	content, err := c.Files("sbx_1").Open(t.Context(), "a.txt")
	testbed.Must(t, err)
	defer content.Close()
	got, err := io.ReadAll(content)
	if err != nil || string(got) != "content" || content.Size != 7 || !content.ModifiedAt.Equal(at) {
		t.Errorf("%q, %v, %+v", got, err, content)
	}
}

func TestLinkOfAFile(t *testing.T) {
	t.Parallel()
	followed := false
	store := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed = true }))
	t.Cleanup(store.Close)
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		testbed.Diff(t, "asked", "/v1/sandboxes/sbx_1/files/a.txt?link=1", r.URL.RequestURI())
		http.Redirect(w, r, store.URL+"/x?signature=1", http.StatusFound)
	}))
	link, err := c.Files("sbx_1").Link(t.Context(), "a.txt")
	if err != nil || link != store.URL+"/x?signature=1" || followed {
		t.Errorf("%q, %v, followed %t", link, err, followed)
	}
}

func TestArtifactReadsTheBodyOfTheRedirect(t *testing.T) {
	t.Parallel()
	want := wire.Artifact{ID: "art_1", Path: "plots/a.png", Size: 7, ContentType: "image/png", URL: "http://store.invalid/x?signature=1"}
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", want.URL)
		reply(t, w, http.StatusFound, want)
	}))
	got, err := c.Artifact(t.Context(), "art_1")
	testbed.Must(t, err)
	testbed.Diff(t, "the answer", want, got)
}
