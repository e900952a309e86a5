// Package abusetest shows that one caller cannot take the farm from the others. It runs a farm of processes (package faulttest) whose API
// and worker have 256 MiB of memory each, does what a careless or hostile caller would do, and calls the farm for a second tenant, the
// neighbour, at the same time.
//
// For each kind of abuse it prints one line: the bytes that Redis and the object store grew by, the resident memory of the API and of the
// worker before, at most and after, and the 95th percentile of the neighbour's print(1), quiet and beside the abuse. The tests compare
// bytes and counts with limits; times are printed only. They run by `make test-abuse`, and ten times over by `make test-abuse-all`.
package abusetest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/faulttest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// Keys of the two tenants and of the operator.
const (
	AbuserKey    = "sk-abuser-0123456789abcdef0123456789abcdef"
	neighbourKey = "sk-neighbour-0123456789abcdef0123456789ab"
	operatorKey  = "sk-operator-0123456789abcdef0123456789abc"
	worker       = "worker-1"
)

// Farm is a farm whose API and worker have ProcessMemory each. Its client is the abuser's.
type Farm struct {
	*faulttest.Farm
	Neighbour *Neighbour
	Operator  *client.Client

	t     testing.TB
	quiet Call
	pids  map[string]int
}

// New starts a farm with two tenants. env are settings in addition.
func New(t testing.TB, program, minio string, env ...string) *Farm {
	t.Helper()
	memory := newLimits(t)
	sum := func(tenant, key string) string {
		hash := sha256.Sum256([]byte(key))
		return tenant + ":" + hex.EncodeToString(hash[:])
	}
	f := &Farm{t: t, Farm: faulttest.New(t, faulttest.Config{
		Program: program, MinIO: minio, Workers: 1, Schedulers: 1, Key: AbuserKey,
		Env: append([]string{
			"SANDFARM_API_KEYS=" + sum("abuser", AbuserKey) + "," + sum("neighbour", neighbourKey) + "," + sum("operator", operatorKey) + ":admin",
			"SANDFARM_METRICS_LISTEN=",
		}, env...),
		Command: func(name string, argv []string) []string {
			if name == faulttest.API || name == worker {
				return memory.command(t, name, argv)
			}
			return argv
		},
	})}
	f.pids = map[string]int{faulttest.API: f.PID(faulttest.API), worker: f.PID(worker)}
	var err error
	f.Operator, err = client.New(f.URL(), client.WithKey(operatorKey))
	testbed.Must(t, err)
	f.Neighbour = &Neighbour{}
	f.Neighbour.Client, err = client.New(f.URL(), client.WithKey(neighbourKey), client.WithHTTPClient(&http.Client{Transport: f.Neighbour}))
	testbed.Must(t, err)
	made, err := f.Neighbour.CreateSandbox(t.Context(), wire.CreateRequest{}, client.WithWait(60*time.Second))
	if err != nil || made.Job.State != "completed" {
		t.Fatalf("create the neighbour's sandbox: %v %+v", err, made.Job)
	}
	f.Neighbour.Box = made.Sandbox.ID
	f.quiet, err = f.Neighbour.Quiet(t.Context(), 60)
	testbed.Must(t, err)
	return f
}

// Revive starts what an earlier abuse has ended, so that the next one is measured all the same.
func (f *Farm) Revive() {
	f.t.Helper()
	for component := range f.pids {
		if !f.Alive(component) {
			f.Start(component)
			f.pids[component] = f.PID(component)
		}
	}
	f.AwaitReady()
}

// Line is what one kind of abuse cost.
type Line struct {
	Name          string
	Redis, Stored int64 // growth at most, in bytes
	RedisAfter    int64 // growth that stayed
	StoredBefore  int64 // what the object store had before
	API, Worker   Resident
	Quiet, Beside Call             // 95th percentile of the neighbour
	Calls         int              // of the neighbour, each of which is a job that Redis keeps
	Cores         map[string]Waits // of the farm's own processes, by component
	Refused       int              // calls of the neighbour that were answered 429 or 5xx, before the client tried again
}

func (l Line) String() string {
	return fmt.Sprintf("%-46s redis +%.1f MiB (+%.1f stay); stored +%.0f MiB; rss before/most/after: api %s, worker %s; neighbour p95 %s, quiet %s; wait for a core: api %.2f, worker %.2f, redis %.2f ms",
		l.Name, mib(l.Redis), mib(l.RedisAfter), mib(l.Stored), l.API, l.Worker, l.Beside, l.Quiet,
		ms(l.Cores[faulttest.API].Mean()), ms(l.Cores[worker].Mean()), ms(l.Cores[faulttest.Redis].Mean()))
}

func mib(n int64) float64        { return float64(n) / (1 << 20) }
func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Measure does abuse beside the neighbour, prints what it cost, and checks that API and worker still run and stayed within their memory.
func (f *Farm) Measure(t testing.TB, name string, abuse func()) Line {
	t.Helper()
	l := Line{Name: name, Quiet: f.quiet}
	redisBefore, storedBefore := f.RedisBytes(), f.settled()
	l.StoredBefore = storedBefore
	for component, r := range map[string]*Resident{faulttest.API: &l.API, worker: &l.Worker} {
		now, _, err := resident(f.pids[component])
		if err = errors.Join(err, resetPeak(f.pids[component])); err != nil {
			t.Fatalf("%s: %v", component, err)
		}
		r.Before = now
	}
	stopWatching := f.watch(storeEvery, func() {
		l.Redis, l.Stored = max(l.Redis, f.RedisBytes()-redisBefore), max(l.Stored, f.StoredBytes()-storedBefore)
	})
	living, done := f.WhileAlive(t.Context())
	defer done()
	cores := map[string]Waits{}
	for _, component := range []string{faulttest.API, worker, faulttest.Redis} {
		cores[component] = waits(f.PID(component))
	}
	stop := f.Neighbour.Start(living)
	abuse()
	beside, calls, err := stop()
	for component, before := range cores {
		cores[component] = waits(f.PID(component)).since(before)
	}
	stopWatching()
	if err != nil {
		t.Error(err)
	}
	l.Cores = cores
	if l.Refused = f.Neighbour.refused(); l.Refused > 0 {
		t.Errorf("the neighbour was refused %d times", l.Refused)
	}
	l.Beside, l.Calls, l.RedisAfter = beside, calls, f.RedisBytes()-redisBefore
	for component, r := range map[string]*Resident{faulttest.API: &l.API, worker: &l.Worker} {
		if !f.Alive(component) {
			t.Fatalf("%s has ended: was it killed at its memory limit?", component)
		}
		var err error
		if r.After, r.Max, err = resident(f.pids[component]); err != nil {
			t.Fatalf("%s: %v", component, err)
		}
		if r.Max > ProcessMemory {
			t.Errorf("%s had %d MiB of resident memory; it may have %d", component, r.Max>>20, ProcessMemory>>20)
		}
	}
	f.print(l)
	return l
}

// WhileAlive returns a context that ends when the API or the worker has ended, with the reason as its cause.
func (f *Farm) WhileAlive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := f.watch(100*time.Millisecond, func() {
		for component := range f.pids {
			if !f.Alive(component) {
				cancel(fmt.Errorf("%s has ended", component))
			}
		}
	})
	return ctx, func() {
		cancel(context.Canceled)
		stop()
	}
}

// storeEvery is how often the object store is measured. To walk its folder takes a core for tens of milliseconds, which the neighbour would feel.
const storeEvery = time.Second

// watch calls look at intervals until the returned function is called.
func (f *Farm) watch(every time.Duration, look func()) (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				look()
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
		look()
	}
}

// RedisBytes is the memory that Redis uses for data.
func (f *Farm) RedisBytes() int64 {
	text, err := f.Redis().Info(context.WithoutCancel(f.t.Context()), "memory").Result()
	if err != nil {
		f.t.Errorf("read the memory of redis: %v", err)
		return 0
	}
	_, rest, _ := strings.Cut(text, "used_memory:")
	value, _, _ := strings.Cut(rest, "\r\n")
	n, _ := strconv.ParseInt(value, 10, 64)
	return n
}

// StoredBytes is what the object store has on disk, with uploads that are not complete.
func (f *Farm) StoredBytes() int64 {
	var total int64
	err := filepath.WalkDir(f.Stored(), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return ignoreGone(err)
		}
		info, err := d.Info()
		if err == nil {
			total += info.Size()
		}
		return ignoreGone(err)
	})
	if err != nil {
		f.t.Errorf("measure the object store: %v", err)
	}
	return total
}

// settled is StoredBytes once nothing changes any more: what an earlier row left is removed in the background.
func (f *Farm) settled() int64 {
	last := f.StoredBytes()
	for range 60 {
		time.Sleep(500 * time.Millisecond)
		now := f.StoredBytes()
		if now == last {
			break
		}
		last = now
	}
	return last
}

// ignoreGone ignores that a file was removed while the tree is walked.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// print logs a line, and appends it to the file that SANDFARM_TEST_REPORT names.
func (f *Farm) print(l Line) {
	f.t.Log(l)
	name := os.Getenv("SANDFARM_TEST_REPORT")
	if name == "" {
		return
	}
	file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // the caller's own file
	if err == nil {
		_, err = fmt.Fprintln(file, l)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		f.t.Errorf("write the report: %v", err)
	}
}

// Neighbour is another tenant, who calls print(1) in a sandbox of its own.
type Neighbour struct {
	*client.Client
	Box string

	mu    sync.Mutex
	times []Call
	err   error

	refusals atomic.Int64
}

// RoundTrip counts the answers that refuse the neighbour: its client repeats such calls.
func (n *Neighbour) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := http.DefaultTransport.RoundTrip(request)
	if err != nil || answer.StatusCode == http.StatusTooManyRequests || answer.StatusCode >= 500 {
		n.refusals.Add(1)
	}
	return answer, err
}

// refused is how many calls were refused since it was asked last.
func (n *Neighbour) refused() int { return int(n.refusals.Swap(0)) }

// Call is how long a call took, and what of that its job waited for a worker and was in the sandbox. The rest is the way there and back, and
// the records.
type Call struct{ Took, Queue, Run time.Duration }

func (c Call) String() string {
	return fmt.Sprintf("%.1f ms (queue %.1f, sandbox %.1f)", ms(c.Took), ms(c.Queue), ms(c.Run))
}

// once calls print(1) and notes how long it took.
func (n *Neighbour) once(ctx context.Context) error {
	began := time.Now()
	job, err := n.Execute(ctx, n.Box, wire.ExecuteRequest{Code: "print(1)"}, client.WithWait(60*time.Second))
	took := time.Since(began)
	switch {
	case err != nil:
		return fmt.Errorf("the neighbour's print(1): %w", err)
	case job.State != "completed" || job.Result == nil || job.Result.Execute == nil || job.Result.Execute.Stdout != "1\n" || job.Attempt != 1:
		return fmt.Errorf("the neighbour's print(1) is %s at attempt %d: %+v", job.State, job.Attempt, job.Error)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	part := func(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
	n.times = append(n.times, Call{took, part(job.Timings.QueueMS), part(job.Timings.RunMS)})
	return nil
}

// Quiet calls some times and returns the call at the 95th percentile.
func (n *Neighbour) Quiet(ctx context.Context, calls int) (Call, error) {
	for range calls {
		if err := n.once(ctx); err != nil {
			return Call{}, err
		}
	}
	p95, _, err := n.take()
	return p95, err
}

// Start calls until the returned function is called, which returns the call at the 95th percentile and the number of calls.
func (n *Neighbour) Start(ctx context.Context) func() (p95 Call, calls int, err error) {
	calling, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for calling.Err() == nil {
			if err := n.once(ctx); err != nil { // ctx: the last call ends by itself
				n.mu.Lock()
				n.err = errors.Join(n.err, err)
				n.mu.Unlock()
				return
			}
		}
	}()
	return func() (Call, int, error) {
		stop()
		<-done
		return n.take()
	}
}

// take returns the 95th percentile and the number of the calls since the last take, and forgets them.
func (n *Neighbour) take() (p95 Call, calls int, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	times, err := n.times, n.err
	n.times, n.err = nil, nil
	if err != nil || len(times) == 0 {
		return Call{}, 0, errors.Join(err, errors.New("the neighbour had no answer"))
	}
	slices.SortFunc(times, func(a, b Call) int { return cmp.Compare(a.Took, b.Took) })
	return times[min(len(times)*95/100, len(times)-1)], len(times), nil
}
