package api_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
)

type change struct {
	id, name string
	data     struct {
		Path, Type, Reason string
		From               *string
		Directories        int
	}
}

// watch opens the changes of a path.
func (f *liveFarm) watch(path, query, last string, headers ...string) *bufio.Reader {
	f.t.Helper()
	request, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, f.web.URL+path+query, nil)
	agenttest.Must(f.t, err)
	request.Header.Set("Accept", "text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	if last != "" {
		request.Header.Set("Last-Event-ID", last)
	}
	answer, err := http.DefaultClient.Do(request)
	agenttest.Must(f.t, err)
	f.t.Cleanup(func() { _ = answer.Body.Close() })
	if answer.StatusCode != http.StatusOK {
		f.t.Fatalf("watch: %s", answer.Status)
	}
	return bufio.NewReader(answer.Body)
}

// next reads events until one has the name.
func (f *liveFarm) next(r *bufio.Reader, want, path string) (e change) {
	f.t.Helper()
	for {
		row, err := r.ReadString('\n')
		agenttest.Must(f.t, err)
		field, value, _ := strings.Cut(strings.TrimSpace(row), ": ")
		switch field {
		case "id":
			e.id = value
		case "event":
			e.name = value
		case "data":
			agenttest.Must(f.t, json.Unmarshal([]byte(value), &e.data))
			if e.name == want && (path == "" || e.data.Path == path) {
				return e
			}
			e = change{}
		}
	}
}

func TestWatchOverHTTP(t *testing.T) {
	t.Parallel()
	f, base, dir := setupFS(t)
	watched, at := strings.TrimSuffix(base, "/fs")+"/watch", "?recursive=1&ignore=*.tmp&path="+url.QueryEscape(dir)
	events := f.watch(watched, at, "")
	if e := f.next(events, "ready", dir); e.data.Directories != 1 {
		t.Errorf("%+v", e)
	}
	agenttest.Must(t, os.WriteFile(filepath.Join(dir, "a"), nil, 0o600))
	last := f.next(events, "created", filepath.Join(dir, "a")).id
	agenttest.Must(t, os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "b")))
	if e := f.next(events, "renamed", filepath.Join(dir, "b")); e.data.From == nil || *e.data.From != filepath.Join(dir, "a") || e.data.Type != "file" {
		t.Errorf("%+v", e)
	}

	// A caller that comes again gets what happened since its last event, also through another worker.
	f.workers[0].Stop()
	f.worker("wrk_8")
	again := f.watch(watched, at, last)
	f.next(again, "renamed", filepath.Join(dir, "b"))
	agenttest.Must(t, os.Remove(filepath.Join(dir, "b")))
	f.next(again, "removed", filepath.Join(dir, "b"))
	f.next(events, "removed", filepath.Join(dir, "b")) // the stream that was open goes on, too

	// Its process ends: the caller is told that something may be lost.
	_, stat := f.do("GET", base+"/proc/self/stat", nil)
	pid := 0
	agenttest.Must(t, json.Unmarshal([]byte(strings.Fields(string(stat))[0]), &pid))
	agenttest.Must(t, syscall.Kill(pid, syscall.SIGKILL))
	f.next(again, "dropped", "")
	f.next(again, "ready", dir)
	agenttest.Must(t, os.WriteFile(filepath.Join(dir, "c"), nil, 0o600))
	f.next(again, "created", filepath.Join(dir, "c"))
}

// …/files/watch is the same stream for who accepts one and may run code, and else the file of this name.
func TestWatchBelowFiles(t *testing.T) {
	t.Parallel()
	f := setupLiveAgent(t, agenttest.StartWithFiles(t), withScopes)
	box, dir := f.sandbox("X-API-Key", "run"), t.TempDir()
	below := "/v1/sandboxes/" + box + "/files/watch"
	get[wire.FileEntry](f.bundle, http.StatusCreated, "PUT", below+"?wait=20", "content", "Content-Type", rawType, "X-API-Key", "run")
	if answer, text := f.do("GET", below, nil, "X-API-Key", "read"); answer.StatusCode != http.StatusOK || string(text) != "content" {
		t.Errorf("%s %s", answer.Status, text)
	}
	f.problem(farm.CodeUnauthorized, http.StatusForbidden, "GET", below+"?path="+url.QueryEscape(dir), nil, "Accept", "text/event-stream", "X-API-Key", "read")
	events := f.watch(below, "?path="+url.QueryEscape(dir), "", "X-API-Key", "run")
	f.next(events, "ready", dir)
	agenttest.Must(t, os.WriteFile(filepath.Join(dir, "a"), nil, 0o600))
	f.next(events, "created", filepath.Join(dir, "a"))
}

func TestBadWatches(t *testing.T) {
	t.Parallel()
	f, base, dir := setupFS(t)
	watched := strings.TrimSuffix(base, "/fs") + "/watch"
	f.problem(farm.CodeNotFound, http.StatusNotFound, "GET", watched+"?path="+dir+"/none", nil)
	f.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "GET", watched+"?after=x&path="+dir, nil)
	f.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "GET", watched+"?after=wat_x.1&path="+dir, nil)
	f.problem(farm.CodeInvalid, http.StatusBadRequest, "GET", watched+"?recursive=maybe", nil)
	f.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "GET", watched+"?path="+dir+strings.Repeat("&ignore=x", farm.MaxIgnored+1), nil)
	for n := range 2 {
		f.next(f.watch(watched, "?path="+dir+strings.Repeat("&ignore=x", farm.MaxIgnored-n), ""), "ready", dir)
	}
}
