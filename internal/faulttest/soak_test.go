//go:build faults && soak

package faulttest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/faulttest"
)

// What each value may grow over the second half of the time: a part of its mean, and so much more.
var soakLimits = map[string]struct{ part, more float64 }{
	"memory":      {0.20, 24}, // MiB
	"goroutines":  {0.20, 60},
	"descriptors": {0.20, 40},
	"keys":        {0.20, 300},
	"containers":  {0, 4},
	"files":       {0.25, 32}, // MiB
}

const soakCallers = 6

// A farm under mixed load for SANDFARM_TEST_SOAK (2 minutes) does not grow: what it keeps of ended work expires after seconds here, and in
// the second half of the time memory, goroutines, descriptors, keys, containers and files are flat.
func TestSoak(t *testing.T) {
	length := 2 * time.Minute
	if text := os.Getenv("SANDFARM_TEST_SOAK"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("SANDFARM_TEST_SOAK must be a duration such as 1h: %v", err)
		}
	}
	f := newFarm(t, faulttest.Config{Workers: 2, Schedulers: 2, Links: true, Env: []string{
		"SANDFARM_LIMITS_RETENTION_SECONDS=15",
	}})
	ctx, done := context.WithTimeout(t.Context(), length)
	defer done()
	var calls, failed atomic.Int64
	var group sync.WaitGroup
	for n := range soakCallers {
		group.Go(func() {
			for ctx.Err() == nil {
				if err := session(ctx, t, f, &calls); err != nil && ctx.Err() == nil {
					failed.Add(1)
					t.Errorf("caller %d: %v", n, err)
				}
			}
		})
	}
	var samples []faulttest.Sample
	tick := time.NewTicker(max(length/60, time.Second))
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			s, err := f.Measure()
			if err != nil {
				t.Errorf("measure: %v", err)
				continue
			}
			samples = append(samples, s)
		}
	}
	group.Wait()
	f.Report(fmt.Sprintf("soak of %s: %d calls, %d failed, %d samples", length, calls.Load(), failed.Load(), len(samples)))
	for _, name := range slices.Sorted(maps.Keys(samples[len(samples)-1].Values)) {
		kind, _, _ := strings.Cut(name, " of ")
		limit := soakLimits[kind]
		growth, mean := faulttest.Growth(samples, name)
		f.Report(fmt.Sprintf("  %-24s first %9.1f  last %9.1f  mean of the second half %9.1f  growth in it %+8.1f",
			name, samples[0].Values[name], samples[len(samples)-1].Values[name], mean, growth))
		if growth > limit.part*mean+limit.more {
			t.Errorf("%s grew by %.1f in the second half, its mean is %.1f", name, growth, mean)
		}
	}
	for box, err := range f.Sandboxes(t.Context(), client.SandboxFilter{}) { // of sessions that the end of the time has cut short
		if err == nil && box.Name != "probe" && (box.State == "ready" || box.State == "busy" || box.State == "starting" || box.State == "queued") {
			_, err = f.Close(t.Context(), box.ID)
		}
		if err != nil {
			t.Errorf("close the last sandboxes: %v", err)
		}
	}
	f.End()
}

// session creates a sandbox, does some work of each kind in it, and closes it.
func session(ctx context.Context, t *testing.T, f *faulttest.Farm, calls *atomic.Int64) (err error) {
	t.Helper()
	made, err := f.CreateSandbox(ctx, wire.CreateRequest{}, client.WithWait(60*time.Second))
	calls.Add(1)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	box := made.Sandbox.ID
	defer func() {
		calls.Add(1)
		closing, done := context.WithTimeout(context.WithoutCancel(ctx), 60*time.Second)
		defer done()
		if _, failed := f.Close(closing, box, client.WithWait(30*time.Second)); failed != nil {
			err = errors.Join(err, fmt.Errorf("close: %w", failed))
		}
	}()
	command := "for i in 1 2 3; do echo $i; done"
	for range 20 {
		if ctx.Err() != nil {
			return nil
		}
		calls.Add(1)
		var job wire.Job
		var what string
		switch rand.IntN(8) { //nolint:gosec // chance, not a secret
		case 0, 1:
			what = "execute"
			job, err = f.Execute(ctx, box, wire.ExecuteRequest{Code: "print(6 * 7)"}, client.WithWait(30*time.Second))
		case 2:
			what = "execute with long output and a file"
			job, err = f.Execute(ctx, box, wire.ExecuteRequest{Code: "print('x' * 300_000)\nimport os\nopen('made.bin', 'wb').write(os.urandom(200_000))"}, client.WithWait(30*time.Second))
		case 3:
			what = "command"
			job, err = f.Command(ctx, box, wire.CommandRequest{Command: &command}, client.WithWait(30*time.Second))
		case 4:
			what = "run"
			job, err = f.Run(ctx, wire.RunRequest{Code: "print('alone')"}, client.WithWait(60*time.Second))
		case 5:
			what = "cancel"
			if job, err = f.Execute(ctx, box, wire.ExecuteRequest{Code: "import time\ntime.sleep(60)"}); err == nil {
				if _, err = f.Cancel(ctx, job.ID); err == nil {
					if job, err = f.Wait(ctx, job.ID); err == nil && job.State == "canceled" {
						job.State = "completed"
					}
				}
			}
		case 6:
			what, job.State = "file", "completed"
			content := bytes.Repeat([]byte("y"), 100_000)
			if err = f.Files(box).Write(ctx, "sent.txt", bytes.NewReader(content)); err == nil {
				var body io.ReadCloser
				if body, err = f.Files(box).Read(ctx, "sent.txt", 0); err == nil {
					_, err = io.Copy(io.Discard, body)
					err = errors.Join(err, body.Close())
				}
			}
		case 7:
			what = "events"
			if job, err = f.Execute(ctx, box, wire.ExecuteRequest{Code: "for n in range(200): print(n, flush=True)"}); err == nil {
				for _, failed := range f.Events(ctx, job.ID, "") {
					err = errors.Join(err, failed)
				}
				job.State = "completed"
			}
		}
		if err == nil && job.ID != "" && !job.Final() { // it may take longer than one call waits
			job, err = f.Wait(ctx, job.ID)
		}
		if err != nil || job.State != "completed" {
			return fmt.Errorf("%s: %w, %s %+v", what, err, job.State, job.Error)
		}
	}
	return nil
}
