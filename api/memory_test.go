package api_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// withMemory gives the server a budget of 16 MiB.
func withMemory(m **budget.Budget) option {
	return func(_ *api.Config, d *api.Deps) {
		*m = budget.New(16 << 20)
		d.Memory = *m
	}
}

// slowBody is a request whose body is sent in two parts, the second one when finish is called.
type slowBody struct {
	pipe   *io.PipeWriter
	rest   string
	answer chan int
}

func (b *bundle) slow(target, key, body string, headers ...string) *slowBody {
	b.t.Helper()
	r, w := io.Pipe()
	request, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, b.web.URL+target, r)
	if err != nil {
		b.t.Fatal(err)
	}
	request.Header.Set("X-API-Key", key)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	request.ContentLength = int64(len(body))
	s := &slowBody{pipe: w, rest: body[len(body)/2:], answer: make(chan int, 1)}
	go func() {
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			s.answer <- 0
			return
		}
		_ = answer.Body.Close()
		s.answer <- answer.StatusCode
	}()
	go func() { _, _ = io.WriteString(w, body[:len(body)/2]) }()
	return s
}

func (s *slowBody) finish() int {
	_, _ = io.WriteString(s.pipe, s.rest)
	_ = s.pipe.Close()
	return <-s.answer
}

// A body is charged while it is read. Who has used up a share waits; others do not.
func TestBodiesAreCharged(t *testing.T) {
	t.Parallel()
	var memory *budget.Budget
	b := setup(t, withKeys, withMemory(&memory))
	const limit = 7 << 20 // of one tenant
	const step = budget.SmallBytes * budget.BodyWeight
	large := `{"code":"` + strings.Repeat("#", 3<<20) + `"}`
	for name, headers := range map[string][]string{"/v1/run": nil, "/mcp": {"Content-Type", "application/json", "Accept", "application/json, text/event-stream"}} {
		one := b.slow(name, key, large, headers...)
		testbed.Until(t, "the first body is charged", func() bool { return memory.Stats().Used == limit })
		two := b.slow(name, key, large, headers...)
		testbed.Until(t, "the second body waits", func() bool { return memory.Stats().Waiting == step })
		small := get[wire.Job](b, http.StatusAccepted, "POST", "/v1/run", `{"code":"1"}`, "X-API-Key", key)
		other := b.slow(name, otherKey, large, headers...)
		testbed.Until(t, "another tenant's body is charged", func() bool { return memory.Stats().Used == 2*limit })
		for i, s := range []*slowBody{one, two, other} {
			if status := s.finish(); status == 0 || status >= 429 {
				t.Errorf("%s: body %d was answered with %d", name, i, status)
			}
		}
		if small.ID == "" {
			t.Error("a small request got no job")
		}
		testbed.Until(t, "everything is given back", func() bool { return memory.Stats().Used == 0 })
	}
}

// A caller that leaves, or waits for its job, holds no memory.
func TestMemoryOfABodyIsGivenBack(t *testing.T) {
	t.Parallel()
	var memory *budget.Budget
	b := setup(t, withMemory(&memory))
	box := b.sandbox()
	gone := b.slow("/v1/run", "", `{"code":"`+strings.Repeat("#", 1<<20)+`"}`)
	testbed.Until(t, "the half of it that came is charged, and the next step", func() bool { return memory.Stats().Used == 4<<20 })
	_ = gone.pipe.CloseWithError(errors.New("the caller has left"))
	testbed.Until(t, "its memory is given back", func() bool { return memory.Stats().Used == 0 })

	code := `{"code":"block","env":{"A":"` + strings.Repeat("x", 200<<10) + `"}}`
	waiting := make(chan int, 1)
	go func() {
		answer, _ := b.do("POST", "/v1/sandboxes/"+box+"/execute?wait=60", code)
		waiting <- answer.StatusCode
	}()
	testbed.Until(t, "the job runs", func() bool {
		return len(get[wire.List[wire.Job]](b, http.StatusOK, "GET", "/v1/jobs?kind=execute&state=running", nil).Items) == 1
	})
	testbed.Until(t, "its body is given back while it is waited for", func() bool { return memory.Stats().Used == 0 })
	close(b.worker.gate)
	if status := <-waiting; status != http.StatusOK {
		t.Errorf("the waiting request was answered with %d", status)
	}
}

// broken fails to take jobs.
type broken struct{ service.Submitter }

func (broken) Submit(context.Context, store.Accept) (store.Accepted, error) {
	return store.Accepted{}, errors.New("the disk is on fire")
}

// An entry of a batch that fails by a fault of the farm is logged with the cause, as the request would be.
func TestFaultOfABatchEntryIsLogged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.sandbox()
	server, err := api.New(api.Config{}, api.Deps{Blobs: b.blobs, Queues: depths{}, Store: b.store, Submitter: broken{}, Logger: b.logger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	second := b.over(server)
	got := get[wire.BatchResult](second, http.StatusMultiStatus, "POST", "/v1/jobs/batch", `{"jobs":[{"kind":"execute","sandbox_id":"`+box+`","code":"1"},{"kind":"nap"}]}`)
	if got.Jobs[0].Error == nil || got.Jobs[0].Error.Code != string(farm.CodeInternal) || strings.Contains(got.Jobs[0].Error.Detail, "fire") {
		t.Errorf("the entry: %+v", got.Jobs[0])
	}
	if log := b.log.String(); strings.Count(log, "the disk is on fire") != 1 || strings.Count(log, "request failed") != 1 {
		t.Errorf("the log has not one line with the cause:\n%s", log)
	}
}
