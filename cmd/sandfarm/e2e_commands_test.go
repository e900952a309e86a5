//go:build integration

package main_test

import (
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// maxCommands bounds the Redis commands of one execution, from the request to the answer.
const maxCommands = 9

// TestRedisCommandsForEachJob counts the farm's commands to Redis while some jobs run, many times over, and takes the fewest: what an idle farm
// sends, and what jobs cost more on a busy machine, only adds to it.
func TestRedisCommandsForEachJob(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	made, err := f.CreateSandbox(t.Context(), wire.CreateRequest{}, client.WithWait(time.Minute))
	if err != nil || made.Job.State != "completed" {
		t.Fatalf("create: %v %+v", err, made.Job)
	}
	run := func() {
		t.Helper()
		job, err := f.Execute(t.Context(), made.Sandbox.ID, wire.ExecuteRequest{Code: "print(1)"}, client.WithWait(time.Minute))
		if err != nil || job.State != "completed" {
			t.Fatalf("execute: %v %+v", err, job)
		}
	}
	run()
	const times, jobs = 25, 4
	each := math.Inf(1)
	for range times {
		before := f.redisCommands()
		for range jobs {
			run()
		}
		each = min(each, (f.redisCommands()-before)/jobs)
	}
	t.Logf("%.1f commands for each job", each)
	if each < 3 || each > maxCommands {
		t.Errorf("%.1f commands for each job, at most %d are allowed", each, maxCommands)
	}
}

// redisCommands is how many commands the farm has sent to Redis, by its own metric.
func (f *farmProcess) redisCommands() (sum float64) {
	f.t.Helper()
	answer, err := http.Get(f.url + "/metrics")
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 2 && strings.HasPrefix(line, "sandfarm_redis_commands_total{") {
			n, err := strconv.ParseFloat(fields[1], 64)
			if err != nil {
				f.t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}
