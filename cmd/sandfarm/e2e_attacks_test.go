//go:build integration

package main_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// attack is a file of the corpus with the outcome that its head states.
type attack struct {
	name, code, state string
	errors, next      []string // names of allowed exceptions
	timeout           int
}

func readAttack(t *testing.T, path string) attack {
	t.Helper()
	code, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	x := attack{name: strings.TrimSuffix(filepath.Base(path), ".py"), code: string(code), state: "completed", timeout: 30}
	for row := range strings.Lines(x.code) {
		key, value, ok := strings.Cut(strings.TrimPrefix(row, "# "), ": ")
		if !ok || !strings.HasPrefix(row, "# ") {
			continue
		}
		switch value = strings.TrimSpace(value); key {
		case "timeout":
			if x.timeout, err = strconv.Atoi(value); err != nil {
				t.Fatal(err)
			}
		case "state":
			x.state = value
		case "error":
			x.errors = strings.Fields(value)
		case "next":
			x.next = strings.Fields(value)
		}
	}
	return x
}

// try runs code and returns the job's state and the name of its exception.
func (f *farmProcess) try(t *testing.T, sandbox, code string, timeout int) (state, exception, text string) {
	t.Helper()
	job, err := f.Execute(t.Context(), sandbox, wire.ExecuteRequest{Code: code, TimeoutSeconds: &timeout}, client.WithWait(2*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if job.Result == nil || job.Result.Execute == nil {
		t.Fatalf("job %s has no result: %+v", job.State, job.Error)
	}
	if e := job.Result.Execute.Error; e != nil {
		return string(job.State), e.Name, e.Value + "\n" + strings.Join(e.Traceback, "\n")
	}
	return string(job.State), "", job.Result.Execute.Stdout
}

// Every known attack, and its harmless twin, runs in a sandbox of its own: it has the stated outcome, the sandbox
// still works, and so do the farm and another sandbox.
func TestAttacks(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("../../worker/testdata/attacks/*/*.py")
	if err != nil || len(paths) < 20 {
		t.Fatalf("%d files, %v", len(paths), err)
	}
	f := newFarm(t)
	neighbour := f.sandbox(wire.CreateRequest{})
	f.run(neighbour.ID, "kept = 41")
	memory, disk := 512, 64
	for _, path := range paths {
		if strings.HasSuffix(path, ".ok.py") {
			continue
		}
		x, twin := readAttack(t, path), readAttack(t, strings.TrimSuffix(path, ".py")+".ok.py")
		t.Run(x.name, func(t *testing.T) { //nolint:paralleltest // a farm of two cores, and each test checks the other sandbox
			sandbox := f.sandbox(wire.CreateRequest{Resources: &wire.ResourcesRequest{MemoryMB: &memory, DiskMB: &disk}})
			state, exception, text := f.try(t, sandbox.ID, x.code, x.timeout)
			if state != x.state || exception != "" && !slices.Contains(x.errors, exception) || exception == "" && len(x.errors) > 0 {
				t.Errorf("it ended as %s with %q; want %s with %v\n%s", state, exception, x.state, x.errors, text)
			}
			if _, exception, text = f.try(t, sandbox.ID, "pass", 30); exception != "" && !slices.Contains(x.next, exception) {
				t.Errorf("the next run ended with %s; want one of %v\n%s", exception, x.next, text)
			}
			if state, exception, text := f.try(t, sandbox.ID, twin.code, 30); state != "completed" || exception != "" {
				t.Errorf("the harmless twin ended as %s with %s: %s", state, exception, text)
			}
			f.run(neighbour.ID, "kept += 1; assert kept > 41")
			answer, err := http.Get(f.url + "/readyz")
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				t.Errorf("the farm is not ready: %d", answer.StatusCode)
			}
			if _, err := f.Client.Close(t.Context(), sandbox.ID, client.WithWait(30*time.Second)); err != nil {
				t.Error(err)
			}
		})
	}
}
