package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

type event struct{ ID, Name, Data string }

// follow reads a stream to its end, or until stop says so.
func (b *bundle) follow(job, after string, stop func(event) bool) []event {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "GET", b.web.URL+"/v1/jobs/"+job+"/events", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	if after != "" {
		request.Header.Set("Last-Event-ID", after)
	}
	answer, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		b.t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
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
		{Name: "display", Data: `{"display":0,"mime":"text/plain","data":"1","display_id":"bar","metadata":{"width":"\u003c3"}}`},
		{Name: "display", Data: `{"display":0,"mime":"text/plain","display_id":"bar","metadata":{"width":"\u003c3"},"update":true,"data":""}`},
		{Name: "clear", Data: `{"wait":true}`},
		{Name: "display", Data: `{"display":1,"mime":"text/plain","data":"2","result":true}`},
		{Name: "clear", Data: `{"wait":false}`},
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	const results = `[{"display":0,"mime":"text/plain","display_id":"bar","metadata":{"width":"\u003c3"},"data":""},{"display":1,"mime":"text/plain","data":"2","result":true}]`
	if got := string(job.Result.Results); got != results {
		t.Errorf("results %s, want %s", got, results)
	}
}
