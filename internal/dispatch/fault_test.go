//go:build integration

package dispatch_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
)

// TestCutsUnderLoad cuts the worker's connections again and again while jobs of several sandboxes run: every job ends,
// once, and long before asynq notices what got lost (its lease is 30 s, and it looks once a minute).
func TestCutsUnderLoad(t *testing.T) {
	t.Parallel()
	socket := startRedis(t)
	proxy := newProxy(t, socket)
	direct := redis.NewClient(&redis.Options{Network: "unix", Addr: socket})
	cuttable := func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: proxy.addr}) }
	workerRDB := cuttable()
	t.Cleanup(func() { _, _ = direct.Close(), workerRDB.Close() })

	records, workerRecords := store.New(direct, store.Options{}), store.New(workerRDB, store.Options{})
	api := dispatch.New(records, queue.NewClient(direct, nil), farm.DefaultLimits(), nil)
	worker := dispatch.New(workerRecords, queue.NewClient(workerRDB, nil), farm.DefaultLimits(), nil)
	var ran, ended atomic.Int64
	s, err := queue.NewServer(cuttable, queue.ServerConfig{
		Queues: map[string]int{farm.QueueCPU: 1}, Concurrency: 8,
		Handler: func(ctx context.Context, task queue.Task) error {
			c, err := workerRecords.Claim(ctx, task.Ref, "w")
			if errors.Is(err, store.ErrNotClaimable) {
				return nil
			}
			if err != nil {
				return err
			}
			worker.Next(ctx, c.Next)
			ran.Add(1)
			err = worker.Finish(ctx, store.Finish{Ref: task.Ref, Attempt: c.Job.Attempt, State: farm.JobCompleted})
			if errors.Is(err, store.ErrFenced) {
				return nil
			}
			if err == nil {
				ended.Add(1)
			}
			return err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)

	const boxes, each = 10, 30
	start := time.Now()
	var jobs []farm.Ref
	for range boxes {
		a := storetest.Create()
		if _, err := api.Submit(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		for range each {
			e := storetest.Execute(a.Sandbox.ID)
			if _, err := api.Submit(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			jobs = append(jobs, e.Job.Ref())
		}
		proxy.cut()
	}
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for round := 0; ; round++ {
		<-tick.C
		if _, err := api.Sweep(t.Context(), storetest.Tenant); err != nil {
			t.Errorf("Sweep = %v", err)
		}
		if round < 8 {
			proxy.cut()
		}
		open, err := records.OpenJobs(t.Context(), storetest.Tenant, 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(open) == 0 {
			break
		}
		if time.Since(start) > 60*time.Second {
			t.Fatalf("%d of %d jobs are open, the first: %+v", len(open), len(jobs), open[0])
		}
	}
	t.Logf("%d jobs ended in %v; handlers began %d, ended %d", len(jobs)+boxes, time.Since(start), ran.Load(), ended.Load())
	for _, ref := range jobs {
		job, err := records.Job(t.Context(), ref)
		if err != nil || job.State != farm.JobCompleted {
			t.Fatalf("job = %+v, %v", job, err)
		}
		events, err := records.Events(t.Context(), ref, "", 0)
		if err != nil || len(events) != 3 {
			t.Fatalf("job %s has events %+v, %v; want queued, running, completed", ref.ID, events, err)
		}
	}
}

func startRedis(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sf") // t.TempDir may be too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "redis.sock")
	cmd := exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--dir", dir, "--save", "", "--loglevel", "warning")
	if err := cmd.Start(); err != nil {
		t.Fatalf("start redis-server: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	})
	rdb := redis.NewClient(&redis.Options{Network: "unix", Addr: socket})
	defer rdb.Close()
	for deadline := time.Now().Add(10 * time.Second); rdb.Ping(t.Context()).Err() != nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("redis-server does not answer")
		}
	}
	return socket
}

// proxy stands between a client and Redis, and can be cut.
type proxy struct {
	addr string
	mu   sync.Mutex
	open []net.Conn
}

func newProxy(t *testing.T, socket string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: listener.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", socket)
			if err != nil {
				_ = in.Close()
				continue
			}
			p.mu.Lock()
			p.open = append(p.open, in, out)
			p.mu.Unlock()
			for _, ends := range [][2]net.Conn{{in, out}, {out, in}} {
				wg.Go(func() {
					_, _ = io.Copy(ends[0], ends[1])
					_, _ = ends[0].Close(), ends[1].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		p.cut()
		wg.Wait()
	})
	return p
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.open {
		_ = conn.Close()
	}
	p.open = nil
}
