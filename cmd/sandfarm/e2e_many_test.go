//go:build integration

package main_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// callbacks are signed, sent again after an error, and not after 410.
func (f *farmProcess) callbacks(t *testing.T) {
	var mu sync.Mutex
	calls := map[string]int{}
	show := exec.Command(program, "config", "callback-secret")
	show.Env = f.env
	secret, err := show.Output()
	testbed.Must(t, err)
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(strings.TrimSpace(string(secret)), "whsec_"))
	testbed.Must(t, err)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mac := hmac.New(sha256.New, key)
		_, _ = fmt.Fprintf(mac, "%s.%s.%s", r.Header.Get("Webhook-Id"), r.Header.Get("Webhook-Timestamp"), body)
		if r.Header.Get("Webhook-Signature") != "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)) {
			t.Errorf("%s: the signature is wrong", r.URL.Path)
		}
		var job wire.Job
		if err := json.Unmarshal(body, &job); err != nil || job.State != "completed" {
			t.Errorf("%s: body %.200s", r.URL.Path, body)
		}
		mu.Lock()
		defer mu.Unlock()
		calls[r.URL.Path]++
		switch {
		case r.URL.Path == "/gone":
			w.WriteHeader(http.StatusGone)
		case r.URL.Path == "/flaky" && calls[r.URL.Path] < 2:
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer receiver.Close()
	box := f.sandbox(wire.CreateRequest{}).ID
	for _, path := range []string{"/gone", "/ok", "/flaky"} {
		_, err = f.Execute(t.Context(), box, wire.ExecuteRequest{Code: "print(1)", CallbackURL: receiver.URL + path})
		testbed.Must(t, err)
	}
	until(t.Context(), t, "the flaky receiver is called again", time.Minute, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return calls["/flaky"] == 2
	})
	mu.Lock()
	defer mu.Unlock()
	if calls["/gone"] != 1 || calls["/ok"] != 1 {
		t.Errorf("calls: %v", calls)
	}
	for _, url := range []string{"ftp://x/", "http://", "javascript:1", "http://user:pw@127.0.0.1/"} {
		f.refused(t, http.StatusUnprocessableEntity, farm.CodeInvalid, "POST", "/v1/sandboxes/"+box+"/execute", `{"code":"1","callback_url":"`+url+`"}`)
	}
}

// many does a lot at once: a batch, readers of one stream, a FIFO that is cancelled, a close with jobs waiting behind it.
func (f *farmProcess) many(t *testing.T) {
	box := f.sandbox(wire.CreateRequest{}).ID
	execute := "/v1/sandboxes/" + box + "/execute"

	var entries []string
	for n := range 1000 {
		entries = append(entries, fmt.Sprintf(`{"kind":"execute","sandbox_id":%q,"code":"print(%d)"}`, box, n))
	}
	batch := decode[wire.BatchResult](t, f.ask("POST", "/v1/jobs/batch", `{"jobs":[`+strings.Join(entries, ",")+`]}`))
	if len(batch.Jobs) != 1000 || batch.Jobs[0].Job == nil || batch.Jobs[999].Job == nil {
		t.Fatalf("the batch gave %d outcomes", len(batch.Jobs))
	}
	f.refused(t, http.StatusUnprocessableEntity, farm.CodeInvalid, "POST", "/v1/jobs/batch", `{"jobs":[`+strings.Join(append(entries, entries[0]), ",")+`]}`)
	for _, n := range []int{999, 0, 500} {
		if job, err := f.Wait(t.Context(), batch.Jobs[n].Job.ID); err != nil || job.State != "completed" || job.Result.Execute.Stdout != fmt.Sprintln(n) {
			t.Errorf("job %d of the batch: %v %+v", n, err, job)
		}
	}

	printing, err := f.Execute(t.Context(), box, wire.ExecuteRequest{Code: "import time\nfor n in range(200): print(n); time.sleep(0.005)"})
	testbed.Must(t, err)
	streams := together(50, func(int) string {
		return string(f.ask("GET", "/v1/jobs/"+printing.ID+"/events", nil).body)
	})
	for _, stream := range streams {
		if stream != streams[0] || !strings.HasSuffix(stream, "event: state\ndata: {\"state\":\"completed\"}\n\n") {
			t.Fatalf("readers of one job differ: %d and %d bytes", len(stream), len(streams[0]))
		}
	}

	first := together(20, func(int) string {
		job, err := f.Execute(t.Context(), box, wire.ExecuteRequest{Code: "print('once')"}, client.WithIdempotencyKey("one key"))
		return fmt.Sprint(job.ID, err)
	})
	for _, id := range first {
		if id != first[0] {
			t.Fatalf("one key made two jobs: %s and %s", id, first[0])
		}
	}

	line := func(n int) (head wire.Job, ids []string) {
		head, err := f.Execute(t.Context(), box, wire.ExecuteRequest{Code: "print('so far', flush=True)\nimport time; time.sleep(100)"})
		testbed.Must(t, err)
		until(t.Context(), t, "the head of the FIFO runs", time.Minute, func() bool {
			now, err := f.Job(t.Context(), head.ID)
			return err == nil && now.State == "running"
		})
		return head, together(n, func(int) string { return decode[wire.Job](t, f.ask("POST", execute, `{"code":"1"}`)).ID })
	}
	head, ids := line(200)
	for _, state := range together(200, func(n int) string {
		return decode[wire.Job](t, f.ask("DELETE", "/v1/jobs/"+ids[n]+"?wait=20", nil)).State
	}) {
		if state != "canceled" {
			t.Fatalf("a cancelled waiting job is %s", state)
		}
	}
	if job := decode[wire.Job](t, f.ask("DELETE", "/v1/jobs/"+head.ID+"?wait=20", nil)); job.State != "canceled" || job.Result.Execute.Stdout != "so far\n" {
		t.Errorf("the running job is %s with %+v", job.State, job.Result)
	}
	f.run(box, "print('usable')")

	head, ids = line(50)
	if job, err := f.Close(t.Context(), box, client.WithWait(30*time.Second)); err != nil || job.State != "completed" {
		t.Fatalf("close: %v %+v", err, job)
	}
	for _, id := range append(ids, head.ID) {
		if job, err := f.Job(t.Context(), id); err != nil || job.State != "canceled" {
			t.Errorf("after the close: %v, state %s", err, job.State)
		}
	}
	until(t.Context(), t, "the queues are empty", time.Minute, func() bool {
		queues, err := f.Queues(t.Context())
		depth := 0
		for _, q := range queues {
			depth += q.Depth + q.Running
		}
		return err == nil && depth == 0
	})
}

// together calls f n times at once and returns the answers in order.
func together(n int, f func(int) string) []string {
	out := make([]string, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { out[i] = f(i) })
	}
	group.Wait()
	return out
}
