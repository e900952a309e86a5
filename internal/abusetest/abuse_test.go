//go:build abuse

package abusetest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/abusetest"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

const (
	mib = 1 << 20
	// outputLimit is limits.max_output_mb of the farm.
	outputLimit = 100
	// jobRecord is what Redis may keep of one job, whatever its code does.
	jobRecord = 128 << 10
	// callRecord is what Redis may keep of each call of the neighbour, a print(1).
	callRecord = 16 << 10
	// redisNoise is what the rest of the farm may add meanwhile: queues, buffers.
	redisNoise = 8 * mib
	// sandboxes is quotas.max_sandboxes of each tenant.
	sandboxes = 8
	// jobTime is after what time a job hangs.
	jobTime = 5 * time.Minute
	// eventLimit, streamLimit and resultLimit are MaxStreamEvents, MaxStreamInline and MaxResultInline of farm.DefaultLimits.
	eventLimit, streamLimit, resultLimit = 8 * mib, mib, 8 * mib
)

// farm is a farm of the program that `make build` made, with the test that uses it.
type farm struct {
	*abusetest.Farm
	t *testing.T
}

func (f farm) on(t *testing.T) farm { return farm{f.Farm, t} }

func newFarm(t *testing.T) farm {
	t.Helper()
	program, err := filepath.Abs("../../bin/sandfarm")
	testbed.Must(t, err)
	minio := os.Getenv("SANDFARM_TEST_MINIO")
	if minio == "" {
		cache, err := os.UserCacheDir()
		testbed.Must(t, err)
		minio = filepath.Join(cache, "sandfarm", "bin", "minio")
	}
	return farm{abusetest.New(t, program, minio,
		fmt.Sprintf("SANDFARM_LIMITS_MAX_OUTPUT_MB=%d", outputLimit),
		"SANDFARM_LIMITS_MEMORY_MB_MAX=100000000", // so that the host is the limit
		fmt.Sprintf("SANDFARM_QUOTAS_MAX_SANDBOXES=%d", sandboxes),
		"SANDFARM_WORKER_POOL=none",
		"SANDFARM_API_ALLOW_PRIVATE_CALLBACKS=true", "SANDFARM_CALLBACK_SECRET=abuse-0123456789abcdef0123456789abcdef",
	), t}
}

// TestAbuse runs one kind of abuse after the other.
func TestAbuse(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	type row struct {
		name string
		do   func(farm)
	}
	rows := []row{
		{"EndlessOutput", endlessOutput},
		{"EndlessLoop", endlessLoop},
		{"StoppedOutput", stoppedOutput},
		{"LongCommands", longCommands},
		{"SlowEventReaders", slowEventReaders},
		{"QueuedCode", queuedCode},
		{"LargerThanTheHost", largerThanTheHost},
		{"TooManySandboxes", tooManySandboxes},
		{"LongNames", longNames},
		{"LongPaths", longPaths},
		{"ManyJobs", manyJobs},
		{"LargeDisplays", largeDisplays},
		{"StagedUploads", stagedUploads},
		{"Callbacks", callbacks},
		{"SilentReceiver", silentReceiver},
		{"Terminals", terminals},
		{"Ports", ports},
		{"Watches", watches},
		{"E2BProcesses", e2bProcesses},
		{"JupyterSockets", jupyterSockets},
		{"JupyterQuestions", jupyterQuestions},
		{"DashboardLogins", dashboardLogins},
		{"FullRedis", fullRedis},
	}
	rounds := 1
	if text := os.Getenv("SANDFARM_TEST_ROUNDS"); text != "" {
		var err error
		rounds, err = strconv.Atoi(text)
		testbed.Must(t, err)
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			for range rounds {
				f.Revive()
				row.do(f.on(t))
			}
		})
	}
}

// boxes creates sandboxes of the abuser and returns a function that closes them.
func (f farm) boxes(count int) (ids []string, closeAll func()) {
	f.t.Helper()
	for range count {
		made, err := f.CreateSandbox(f.t.Context(), wire.CreateRequest{Resources: &wire.ResourcesRequest{MemoryMB: new(1024)}}, client.WithWait(60*time.Second))
		if err != nil || made.Job.State != "completed" {
			f.t.Fatalf("create: %v %+v", err, made.Job)
		}
		ids = append(ids, made.Sandbox.ID)
	}
	return ids, func() {
		for _, id := range ids {
			if _, err := f.Close(f.t.Context(), id); err != nil {
				f.t.Error(err)
			}
		}
	}
}

// each calls do for each sandbox at once.
func (f farm) each(boxes []string, do func(ctx context.Context, box string) error) {
	f.t.Helper()
	ctx, release := f.WhileAlive(f.t.Context())
	defer release()
	g, ctx := errgroup.WithContext(ctx)
	for _, box := range boxes {
		g.Go(func() error { return do(ctx, box) })
	}
	if err := g.Wait(); err != nil {
		f.t.Errorf("%v (%v)", err, context.Cause(ctx))
	}
}

// ended waits for a job, which must end in a state and at its first attempt.
func (f farm) ended(ctx context.Context, accepted wire.Job, err error, state string) (wire.Job, error) {
	if err != nil {
		return wire.Job{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, jobTime)
	defer cancel()
	job, err := f.Wait(ctx, accepted.ID)
	if err == nil && (job.State != state || job.Attempt != 1 || job.Result == nil) {
		err = fmt.Errorf("job %s is %s at attempt %d, want %s at 1: %+v", job.ID, job.State, job.Attempt, state, job.Error)
	}
	return job, err
}

// within checks what an abuse of some jobs cost.
func (f farm) within(l abusetest.Line, jobs int, stored int64) {
	f.t.Helper()
	if limit := int64(jobs*jobRecord + l.Calls*callRecord + redisNoise); l.RedisAfter > limit {
		f.t.Errorf("Redis keeps %d bytes of %d jobs; at most %d are allowed", l.RedisAfter, jobs, limit)
	}
	if l.Stored > stored {
		f.t.Errorf("the object store grew by %d MiB; at most %d are allowed", l.Stored/mib, stored/mib)
	}
}

// storedOnce checks that output is stored once: as artifacts, of which a job has printed bytes. Up to a limit it is also stored as events and
// in the result, told bytes at most. The end of a line takes two bytes there, and what is around the text gets 4 MiB. While a job runs, there are
// two snapshots of it for a worker that takes over: what its result will have, and what is not sent yet of each of its streams.
func (f farm) storedOnce(l abusetest.Line, jobs, printed, reported int) {
	f.t.Helper()
	kept := int64(jobs) * int64(printed+(eventLimit+reported)*3/2+4*mib)
	f.within(l, jobs, kept+int64(jobs)*2*int64(reported+2*blob.PartBytes))
	f.Until(shrinkTime, fmt.Sprintf("at most %d MiB are stored of %d jobs", kept/mib, jobs), func() bool { return f.StoredBytes()-l.StoredBefore <= kept })
	f.t.Logf("of %d jobs %d MiB stay stored; at most %d are allowed", jobs, (f.StoredBytes()-l.StoredBefore)/mib, kept/mib)
}

const printsForEver = "import sys\nline = 'x' * 99 + '\\n'\nwhile True:\n    sys.stdout.write(line)\n"

// printsLong prints for 10 s, and on a busy machine until it is half as much again as the limit.
var printsLong = fmt.Sprintf(`import sys, time
line, began, printed = 'x' * 99 + '\n', time.time(), 0
while time.time() - began < 10 or printed < %d:
    for _ in range(1000):
        sys.stdout.write(line)
    printed += 1000 * len(line)
`, outputLimit*mib/2*3)

// The accident that models make most: a loop that prints. What is kept is limited, and the code goes on.
func endlessOutput(f farm) {
	const jobs = 2
	boxes, closeAll := f.boxes(jobs)
	defer closeAll()
	l := f.Measure(f.t, fmt.Sprintf("%d loops that print for 10 s", jobs), func() {
		f.each(boxes, func(ctx context.Context, box string) error {
			made, err := f.Execute(ctx, box, wire.ExecuteRequest{Code: printsLong})
			job, err := f.ended(ctx, made, err, "completed")
			if err != nil {
				return err
			}
			r := job.Result.Execute
			if len(r.Artifacts) != 1 || r.Artifacts[0].Size > outputLimit*mib || r.Artifacts[0].Size < outputLimit*mib-mib || r.DroppedBytes.Stdout == 0 || !r.Truncated.Stdout {
				return fmt.Errorf("artifacts %+v, dropped %+v", r.Artifacts, r.DroppedBytes)
			}
			return nil
		})
	})
	f.storedOnce(l, jobs, outputLimit*mib, streamLimit)
}

// A loop that only computes, in as many sandboxes as this machine has cores: nothing is left over for the farm.
func endlessLoop(f farm) {
	jobs := min(runtime.NumCPU(), sandboxes)
	boxes, closeAll := f.boxes(jobs)
	defer closeAll()
	l := f.Measure(f.t, fmt.Sprintf("%d loops that compute for 10 s", jobs), func() {
		f.each(boxes, func(ctx context.Context, box string) error {
			made, err := f.Execute(ctx, box, wire.ExecuteRequest{Code: "import time\nend = time.time() + 10\nwhile time.time() < end:\n    pass\n"})
			_, err = f.ended(ctx, made, err, "completed")
			return err
		})
	})
	f.within(l, jobs, mib)
}

// With on_output_limit "stop" the code ends at the limit.
func stoppedOutput(f farm) {
	boxes, closeAll := f.boxes(1)
	defer closeAll()
	l := f.Measure(f.t, "a loop that is stopped at the output limit", func() {
		f.each(boxes, func(ctx context.Context, box string) error {
			made, err := f.Execute(ctx, box, wire.ExecuteRequest{Code: printsForEver, OnOutputLimit: new("stop")})
			job, err := f.ended(ctx, made, err, "completed")
			if err != nil {
				return err
			}
			if r := job.Result.Execute; r.Error == nil || r.Error.Name != "OutputLimitExceeded" || r.ExitCode != 137 {
				return fmt.Errorf("exit code %d, error %+v", r.ExitCode, r.Error)
			}
			return nil
		})
	})
	f.storedOnce(l, 1, outputLimit*mib, streamLimit)
}

// Ten commands of 9 MB each, four times: their results were once in Redis.
func longCommands(f farm) {
	const jobs, size = 4, 9_000_000
	boxes, closeAll := f.boxes(jobs)
	defer closeAll()
	commands := make([]string, 10)
	for i := range commands {
		commands[i] = fmt.Sprintf("yes | head -c %d", size)
	}
	l := f.Measure(f.t, fmt.Sprintf("%d jobs of ten commands that print 9 MB each", jobs), func() {
		f.each(boxes, func(ctx context.Context, box string) error {
			made, err := f.Command(ctx, box, wire.CommandRequest{Commands: commands})
			job, err := f.ended(ctx, made, err, "completed")
			if err != nil {
				return err
			}
			if r := job.Result.Command; len(r.Results) != 10 || len(r.Artifacts) != 10 || r.Artifacts[9].Size != size {
				return fmt.Errorf("%d results, artifacts %+v", len(r.Results), r.Artifacts)
			}
			return nil
		})
	})
	f.storedOnce(l, jobs, 10*size, resultLimit)
}

// Ten displayed values of 47 MB each, in two sandboxes at once.
func largeDisplays(f farm) {
	const jobs, size = 10, 47_000_000
	boxes, closeAll := f.boxes(2)
	defer closeAll()
	code := fmt.Sprintf("from IPython.display import display\ndisplay({'text/html': 'x' * %d}, raw=True)", size)
	l := f.Measure(f.t, fmt.Sprintf("%d displays of 47 MB", jobs), func() {
		f.each(boxes, func(ctx context.Context, box string) error {
			for range jobs / len(boxes) {
				made, err := f.Execute(ctx, box, wire.ExecuteRequest{Code: code})
				job, err := f.ended(ctx, made, err, "completed")
				if err != nil {
					return err
				}
				if r := job.Result.Execute; len(r.Artifacts) != 1 || r.Artifacts[0].Size != size {
					return fmt.Errorf("artifacts %+v, notes %q", r.Artifacts, r.Notes)
				}
			}
			return nil
		})
	})
	f.within(l, jobs, jobs*size+32*mib)
}

// Readers of an event stream that do not read what they asked for.
func slowEventReaders(f farm) {
	const readers = 20
	boxes, closeAll := f.boxes(1)
	defer closeAll()
	made, err := f.Execute(f.t.Context(), boxes[0], wire.ExecuteRequest{Code: "for n in range(70_000): print('x' * 99)"})
	_, err = f.ended(f.t.Context(), made, err, "completed")
	testbed.Must(f.t, err)
	l := f.Measure(f.t, fmt.Sprintf("%d readers of 7 MB of events that do not read", readers), func() {
		f.each(make([]string, readers), func(ctx context.Context, _ string) error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.URL()+made.Links.Events, nil)
			if err != nil {
				return err
			}
			request.Header.Set("Authorization", "Bearer "+abusetest.AbuserKey)
			answer, err := http.DefaultClient.Do(request)
			if errors.Is(err, context.DeadlineExceeded) {
				return nil // it waits for the abuser's other readers
			}
			if err != nil {
				return err
			}
			defer func() { _ = answer.Body.Close() }()
			if answer.StatusCode != http.StatusOK {
				return fmt.Errorf("events: %s", answer.Status)
			}
			<-ctx.Done() // the API fills what it can meanwhile
			return nil
		})
	})
	f.within(l, 1, 8*mib)
	bytes := 0
	for event, err := range f.Events(f.t.Context(), made.ID, "") {
		testbed.Must(f.t, err)
		if event.Name == "stdout" {
			var data wire.TextData
			testbed.Must(f.t, json.Unmarshal(event.Data, &data))
			bytes += len(data.Text)
		}
	}
	testbed.Diff(f.t, "bytes of output that a reader gets", 70_000*100, bytes)
}

// 72 jobs of 10 MB of code wait behind one that sleeps.
func queuedCode(f farm) {
	const jobs = 72
	boxes, closeAll := f.boxes(1)
	code := "#" + strings.Repeat("x", 10_000_000)
	l := f.Measure(f.t, fmt.Sprintf("%d queued jobs of 10 MB of code", jobs), func() {
		if _, err := f.Execute(f.t.Context(), boxes[0], wire.ExecuteRequest{Code: "import time; time.sleep(300)"}); err != nil {
			f.t.Fatal(err)
		}
		var g errgroup.Group
		g.SetLimit(8)
		for range jobs {
			g.Go(func() error {
				_, err := f.Execute(f.t.Context(), boxes[0], wire.ExecuteRequest{Code: code})
				return err
			})
		}
		if err := g.Wait(); err != nil {
			f.t.Error(err)
		}
	})
	f.within(l, jobs, jobs*10_000_000+32*mib) // once, for the worker and for who reads the request
	closeAll()
}

// Small jobs, one after the other: what Redis keeps of each.
func manyJobs(f farm) {
	const jobs = 200
	boxes, closeAll := f.boxes(1)
	defer closeAll()
	l := f.Measure(f.t, fmt.Sprintf("%d jobs of print(1)", jobs), func() {
		for range jobs {
			job, err := f.Execute(f.t.Context(), boxes[0], wire.ExecuteRequest{Code: "print(1)"}, client.WithWait(60*time.Second))
			if err != nil || job.State != "completed" {
				f.t.Fatalf("%v %+v", err, job)
			}
		}
	})
	f.within(l, jobs, 8*mib)
}
