package verbs_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
)

// TestRunSaysWhatItWaitsFor runs code that is queued for a while: what it waits for is said after some time, and again when it changes.
func TestRunSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	times, looked := make(chan time.Time), make(chan struct{})
	f.After = func(time.Duration) <-chan time.Time { return times }
	messages := []string{"No worker is alive.", "No worker is alive.", "It is next in the queue cpu."}
	asked := 0
	f.Routes["GET /v1/jobs/job_1"] = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("wait") != "" {
			f.read(w, r)
			return
		}
		if asked == len(messages) {
			f.answer(w, http.StatusOK, wire.Job{ID: "job_1", State: "running"})
			return
		}
		job := wire.Job{ID: "job_1", State: "queued", Waiting: &wire.Waiting{Code: "x", Message: messages[asked]}}
		asked++
		f.answer(w, http.StatusOK, job)
		looked <- struct{}{}
	}
	f.Script = func(send func(string, any), _ <-chan struct{}) (string, *wire.Result) {
		for range messages {
			times <- time.Time{}
			<-looked
		}
		times <- time.Time{} // the last answer is printed; the next look finds that it has begun
		return "completed", &wire.Result{Execute: &wire.ExecuteResult{}}
	}
	got := f.sandfarm(t.Context(), "print(1)", "run", "-")
	want := "sandfarm: job_1 waits: No worker is alive.\nsandfarm: job_1 waits: It is next in the queue cpu.\n"
	if diff := cmp.Diff(want, got.stderr); got.code != 0 || diff != "" {
		t.Errorf("code %d (-want +got):\n%s", got.code, diff)
	}
}

func TestJobShowSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["GET /v1/jobs/job_1"] = func(w http.ResponseWriter, _ *http.Request) {
		f.answer(w, http.StatusOK, wire.Job{ID: "job_1", State: "queued", Position: 1, Waiting: &wire.Waiting{Code: "no_worker", Message: "No worker is alive."}})
	}
	if got := f.sandfarm(t.Context(), "", "job", "show", "job_1"); !strings.Contains(got.out, "waits for  No worker is alive.\n") {
		t.Errorf("job show printed:\n%s%s", got.out, got.stderr)
	}
}

func TestJobShowOfAnEndSaysTheState(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	for state, want := range map[string]string{"canceled": "error  Why.\n", "timed_out": "error  Why.\n", "failed": "error  conflict: Why.\n"} {
		f.Routes["GET /v1/jobs/job_1"] = f.gives(http.StatusOK, wire.Job{ID: "job_1", State: state, Error: &wire.JobError{Code: "conflict", Message: "Why."}})
		if got := f.sandfarm(t.Context(), "", "job", "show", "job_1"); !strings.Contains(got.out, want) {
			t.Errorf("job show printed:\n%s%s", got.out, got.stderr)
		}
	}
}

func TestJobShowSaysThatItWasTakenOver(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["GET /v1/jobs/job_1"] = f.gives(http.StatusOK, wire.Job{ID: "job_1", State: "completed", Attempt: 2})
	if got := f.sandfarm(t.Context(), "", "job", "show", "job_1"); !strings.Contains(got.out, "attempts  2: it was requeued, or another worker took it over\n") {
		t.Errorf("job show printed:\n%s%s", got.out, got.stderr)
	}
}
