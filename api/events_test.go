package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

type event struct{ ID, Name, Data string }

// follow reads a stream to its end, or until stop says so.
func (b *bundle) follow(job, after string, stop func(event) bool) []event {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "GET", b.web.URL+"/v1/jobs/"+job+"/events", nil)
	testbed.Must(b.t, err)
	if after != "" {
		request.Header.Set("Last-Event-ID", after)
	}
	answer, err := http.DefaultTransport.RoundTrip(request)
	testbed.Must(b.t, err)
	defer func() { _ = answer.Body.Close() }()
	if kind := answer.Header.Get("Content-Type"); answer.StatusCode != http.StatusOK || !strings.HasPrefix(kind, "text/event-stream") {
		b.t.Fatalf("status %d, type %q", answer.StatusCode, kind)
	}
	var events []event
	var e event
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			e.ID = value
		case "event":
			e.Name = value
		case "data":
			e.Data = value
		case "":
			if lines.Text() == "" && e.ID != "" {
				events = append(events, e)
				if stop != nil && stop(e) {
					return events
				}
				e = event{}
			}
		}
	}
	if err := lines.Err(); err != nil {
		b.t.Fatalf("stream of %s: %v", job, err)
	}
	return events
}

func TestEventsAreReplayedAndFollowed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.sandbox()
	job := get[wire.Job](b, http.StatusOK, "POST", "/v1/sandboxes/"+box+"/execute?wait=20", `{"code":"print <b>&"}`)
	all := b.follow(job.ID, "", nil)
	var seen []event
	for _, e := range all {
		seen = append(seen, event{Name: e.Name, Data: e.Data})
	}
	want := []event{
		{Name: "state", Data: `{"state":"queued"}`},
		{Name: "state", Data: `{"state":"running"}`},
		{Name: "stdout", Data: `{"text":"<b>&\n"}`},
		{Name: "state", Data: `{"state":"completed"}`},
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Fatal(diff)
	}
	for i := range all {
		if diff := cmp.Diff(all[i+1:], b.follow(job.ID, all[i].ID, nil), cmp.Transformer("empty", func(e []event) []event { return append([]event{}, e...) })); diff != "" {
			t.Fatalf("after %s: %s", all[i].ID, diff)
		}
	}
	for _, bad := range []string{"!!not-an-id!!", "a-b", "-1-0"} {
		if p := b.problemOf("GET", "/v1/jobs/"+job.ID+"/events", nil, "Last-Event-ID", bad); p.Code != "invalid" {
			t.Errorf("Last-Event-ID %q: %+v", bad, p)
		}
	}
	b.problem(farm.CodeNotFound, http.StatusNotFound, "GET", "/v1/jobs/job_nobody/events", nil)
	b.problem(farm.CodeNotFound, http.StatusNotFound, "GET", "/v1/jobs/"+farm.NewID(farm.JobPrefix)+"/events", nil)
}

func TestEventsAreLiveForSeveralReaders(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.sandbox()
	job := get[wire.Job](b, http.StatusAccepted, "POST", "/v1/sandboxes/"+box+"/execute", `{"code":"block"}`)
	readers := make(chan []event, 3)
	for range 3 {
		go func() { readers <- b.follow(job.ID, "", nil) }()
	}
	// The output arrives while the job still runs: the job continues only after it was read.
	b.follow(job.ID, "", func(e event) bool { return e.Name == "stdout" })
	close(b.worker.gate)
	first := <-readers
	if len(first) != 4 || first[3].Data != `{"state":"completed"}` {
		t.Fatalf("events %v", first)
	}
	for range 2 {
		if diff := cmp.Diff(first, <-readers); diff != "" {
			t.Fatal(diff)
		}
	}
}

func TestEventsCarryLinksAndHeartbeats(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.sandbox()
	made := get[wire.Job](b, http.StatusOK, "POST", "/v1/sandboxes/"+box+"/execute?wait=20", `{"code":"make a.txt"}`)
	found := false
	for _, e := range b.follow(made.ID, "", nil) {
		if e.Name == "artifact" {
			found = strings.Contains(e.Data, `"url":"http://s3.test/artifacts/a.txt?name=a.txt"`) && !strings.Contains(e.Data, `"key"`)
		}
	}
	if !found {
		t.Fatal("no artifact event with a link")
	}
	job := get[wire.Job](b, http.StatusAccepted, "POST", "/v1/sandboxes/"+box+"/execute", `{"code":"block"}`)
	request, err := http.NewRequestWithContext(t.Context(), "GET", b.web.URL+"/v1/jobs/"+job.ID+"/events", nil)
	testbed.Must(t, err)
	answer, err := http.DefaultTransport.RoundTrip(request)
	testbed.Must(t, err)
	defer func() { _ = answer.Body.Close() }()
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		if lines.Text() == ": still here" {
			close(b.worker.gate)
			return
		}
	}
	t.Fatal("no sign of life in a quiet stream")
}

// Fields that a value does not have are left out, so that older clients see what they saw.
func TestUpdatesAndClearsAreEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.sandbox()
	job := get[struct {
		ID     string
		Result struct{ Results json.RawMessage }
	}](b, http.StatusOK, "POST", "/v1/sandboxes/"+box+"/execute?wait=20", `{"code":"animate"}`)
	var seen []event
	for _, e := range b.follow(job.ID, "", nil) {
		if e.Name != "state" {
			seen = append(seen, event{Name: e.Name, Data: e.Data})
		}
	}
	want := []event{
		{Name: "display", Data: `{"display":0,"mime":"text/plain","data":"1","display_id":"bar","metadata":{"width":"<3"}}`},
		{Name: "display", Data: `{"display":0,"mime":"text/plain","display_id":"bar","metadata":{"width":"<3"},"update":true,"data":""}`},
		{Name: "clear", Data: `{"wait":true}`},
		{Name: "display", Data: `{"display":1,"mime":"text/plain","data":"2","result":true}`},
		{Name: "clear", Data: `{"wait":false}`},
	}
	testbed.Diff(t, "events", want, seen)
	const results = `[{"display":0,"mime":"text/plain","display_id":"bar","metadata":{"width":"<3"},"data":""},{"display":1,"mime":"text/plain","data":"2","result":true}]`
	testbed.Diff(t, "results", results, string(job.Result.Results))
}

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
	testbed.Must(f.t, err)
	request.Header.Set("Accept", "text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	if last != "" {
		request.Header.Set("Last-Event-ID", last)
	}
	answer, err := http.DefaultClient.Do(request)
	testbed.Must(f.t, err)
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
		testbed.Must(f.t, err)
		field, value, _ := strings.Cut(strings.TrimSpace(row), ": ")
		switch field {
		case "id":
			e.id = value
		case "event":
			e.name = value
		case "data":
			testbed.Must(f.t, json.Unmarshal([]byte(value), &e.data))
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
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "a"), nil, 0o600))
	last := f.next(events, "created", filepath.Join(dir, "a")).id
	testbed.Must(t, os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "b")))
	if e := f.next(events, "renamed", filepath.Join(dir, "b")); e.data.From == nil || *e.data.From != filepath.Join(dir, "a") || e.data.Type != "file" {
		t.Errorf("%+v", e)
	}

	// A caller that comes again gets what happened since its last event, also through another worker.
	f.workers[0].Stop()
	f.worker("wrk_8")
	again := f.watch(watched, at, last)
	f.next(again, "renamed", filepath.Join(dir, "b"))
	testbed.Must(t, os.Remove(filepath.Join(dir, "b")))
	f.next(again, "removed", filepath.Join(dir, "b"))
	f.next(events, "removed", filepath.Join(dir, "b")) // the stream that was open goes on, too

	// Its process ends: the caller is told that something may be lost.
	_, stat := f.do("GET", base+"/proc/self/stat", nil)
	pid := 0
	testbed.Must(t, json.Unmarshal([]byte(strings.Fields(string(stat))[0]), &pid))
	testbed.Must(t, syscall.Kill(pid, syscall.SIGKILL))
	f.next(again, "dropped", "")
	f.next(again, "ready", dir)
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "c"), nil, 0o600))
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
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "a"), nil, 0o600))
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
