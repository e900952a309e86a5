package client_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
)

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
					content, err := io.ReadAll(r.Body)
					if err != nil {
						t.Error(err)
					}
					uri, sent = r.URL.EscapedPath(), string(content)
				}
				farm(w, r)
			}))
			got, err := c.Files("sbx_1").Put(t.Context(), "a b/c.txt", strings.NewReader("hello"))
			if err != nil || sent != "hello" || uri != "/v1/sandboxes/sbx_1/files/a%20b/c.txt" {
				t.Errorf("%v, sent %q to %q", err, sent, uri)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPutThatFailsLaterIsAnError(t *testing.T) {
	t.Parallel()
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			reply(t, w, http.StatusAccepted, wire.Job{ID: "job_1", State: "running"})
			return
		}
		reply(t, w, http.StatusOK, wire.Job{ID: "job_1", State: "failed", Error: &wire.JobError{Code: "exhausted", Message: "the disk is full"}})
	}))
	if _, err := c.Files("sbx_1").Put(t.Context(), "a", strings.NewReader("x")); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("error %v", err)
	}
}

func TestOpenKnowsTheSize(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0)
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", at, strings.NewReader("content"))
	}))
	content, err := c.Files("sbx_1").Open(t.Context(), "a.txt")
	if err != nil {
		t.Fatal(err)
	}
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
		if r.URL.RequestURI() != "/v1/sandboxes/sbx_1/files/a.txt?link=1" {
			t.Errorf("asked %q", r.URL.RequestURI())
		}
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
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
