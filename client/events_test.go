package client_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// stream serves these texts as event streams, one for each connection, and records the Last-Event-ID of each.
func stream(t *testing.T, asked *[]string, texts ...string) *client.Client {
	t.Helper()
	return setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := len(*asked)
		*asked = append(*asked, r.Header.Get("Last-Event-ID"))
		if n >= len(texts) {
			refuse(t, w, http.StatusGone, "not_found", "asked too often")
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, texts[n])
	}))
}

func read(t *testing.T, c *client.Client, after string) ([]string, error) {
	t.Helper()
	var got []string
	for event, err := range c.Events(t.Context(), "job_1", after) {
		if err != nil {
			return got, err
		}
		got = append(got, event.ID+" "+event.Name+" "+string(event.Data))
	}
	return got, nil
}

const final = "id: 9-1\nevent: state\ndata: {\"state\":\"completed\"}\n\n"

func TestEventsResumeAfterABrokenConnection(t *testing.T) {
	t.Parallel()
	var asked []string
	c := stream(
		t, &asked,
		": hello\n\nid: 1-1\nevent: stdout\ndata: {\"text\":\"a\"}\n\nid: 2-1\nevent: std", // cut off within an event
		"",
		"id: 2-1\nevent: stdout\ndata: {\"text\":\"b\"}\n\n"+final+"id: 10-1\nevent: stdout\ndata: {}\n\n",
	)
	got, err := read(t, c, "")
	testbed.Must(t, err)
	want := []string{`1-1 stdout {"text":"a"}`, `2-1 stdout {"text":"b"}`, `9-1 state {"state":"completed"}`}
	testbed.Diff(t, "events", want, got)
	testbed.Diff(t, "Last-Event-ID", []string{"", "1-1", "1-1"}, asked)
}

func TestEventsStartAfterAnID(t *testing.T) {
	t.Parallel()
	var asked []string
	c := stream(t, &asked, final)
	if _, err := read(t, c, "5-1"); err != nil || asked[0] != "5-1" {
		t.Errorf("asked for %q, error %v", asked, err)
	}
}

func TestEventsFormat(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ text, want string }{
		"CRLF":           {"id: 1\r\nevent: stdout\r\ndata: {}\r\n\r\n", "1 stdout {}"},
		"NoSpace":        {"id:1\nevent:stdout\ndata:{}\n\n", "1 stdout {}"},
		"DataOnTwoLines": {"id: 1\nevent: stdout\ndata: [1,\ndata: 2]\n\n", "1 stdout [1,\n2]"},
		"Comments":       {": beat\n\n:\nid: 1\nevent: stdout\n: beat\ndata: {}\n\n", "1 stdout {}"},
		"NoDataNoEvent":  {"id: 1\nevent: stdout\n\nevent: stderr\ndata: {}\n\n", "1 stderr {}"},
		"LongLine":       {"id: 1\nevent: stdout\ndata: \"" + strings.Repeat("x", 200_000) + "\"\n\n", "1 stdout \"" + strings.Repeat("x", 200_000) + "\""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked []string
			got, err := read(t, stream(t, &asked, test.text+final), "")
			if err != nil || len(got) != 2 || got[0] != test.want {
				t.Errorf("%.200q, %v, want %.200q", got, err, test.want)
			}
		})
	}
}

func TestEventsOfAnUnknownJobGiveTheProblem(t *testing.T) {
	t.Parallel()
	var asked []string
	if _, err := read(t, stream(t, &asked), ""); client.CodeOf(err) != "not_found" || len(asked) != 1 {
		t.Errorf("%v after %d requests, want not_found after one", err, len(asked))
	}
}

func TestEventsEndWhenTheReaderStops(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, "id: 1-1\nevent: stdout\ndata: {}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(gone)
	}))
	for _, err := range c.Events(t.Context(), "job_1", "") {
		testbed.Must(t, err)
		break
	}
	<-gone // the connection is closed
}

func TestWaitPollsUntilTheJobIsFinal(t *testing.T) {
	t.Parallel()
	states := []string{"queued", "running", "timed_out"}
	n := 0
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("wait") != "30" {
			t.Errorf("query %q", r.URL.RawQuery)
		}
		reply(t, w, http.StatusOK, wire.Job{ID: "job_1", State: states[n]})
		n++
	}))
	job, err := c.Wait(t.Context(), "job_1")
	if err != nil || job.State != "timed_out" || n != 3 {
		t.Errorf("%s, %v after %d requests", job.State, err, n)
	}
	if client.Failure(job) == nil || client.Failure(wire.Job{State: "completed"}) != nil {
		t.Error("only a job that did not complete is a failure")
	}
}
