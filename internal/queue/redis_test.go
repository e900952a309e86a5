//go:build integration

package queue_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/queue/queuetest"
)

const patience = 60 * time.Second

func TestOnRedis(t *testing.T) {
	t.Parallel()
	queuetest.Run(t, func(t *testing.T) func() redis.UniversalClient {
		t.Helper()
		return startRedis(t).dial
	})
}

// TestNoPollingAtIdle counts what an idle server asks of Redis.
func TestNoPollingAtIdle(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	got := make(chan queue.Task, 10)
	serve(t, r.dial, got)
	rdb := r.client(t)
	send(t, queue.NewClient(rdb, nil), "job_1")
	receive(t, got)
	if err := rdb.ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	const watch = 4 * time.Second
	select { // idle for a while: the point of the test
	case <-time.After(watch):
	case task := <-got:
		t.Fatalf("unexpected task %v", task)
	}
	info, err := rdb.InfoMap(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	var calls int
	if _, err := fmt.Sscanf(info["Commandstats"]["cmdstat_evalsha"], "calls=%d,", &calls); err != nil {
		t.Fatalf("read %q: %v", info["Commandstats"]["cmdstat_evalsha"], err)
	}
	// One dequeue and two looks at delayed tasks a second, and asynq's own upkeep every few seconds.
	perSecond := float64(calls) / watch.Seconds()
	t.Logf("an idle server runs %.1f scripts a second", perSecond)
	if perSecond > 6 {
		t.Errorf("an idle server runs %.1f scripts a second", perSecond)
	}
}

// TestCutConnectionRecovers cuts every connection of an idle server several times, then keeps it away from Redis for a
// while. An answer that is cut off on its way costs a task a minute (asynq's lease): package dispatch tests its remedy.
func TestCutConnectionRecovers(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	proxy := newProxy(t, r.socket)
	got := make(chan queue.Task, 10_000)
	serve(t, proxy.dial, got)
	c := queue.NewClient(r.client(t), nil)
	for i := range 5 {
		id := fmt.Sprintf("job_%d", i)
		start := time.Now()
		send(t, c, id)
		collect(t, got, []string{id})
		t.Logf("behind a cut the task took %v", time.Since(start))
		proxy.cut()
	}
	proxy.refuse(true)
	proxy.cut()
	send(t, c, "job_while_down")
	select {
	case task := <-got:
		t.Logf("a task came again: %v", task)
	case <-time.After(500 * time.Millisecond): // down for a while: the point of the test
	}
	proxy.refuse(false)
	collect(t, got, []string{"job_while_down"})
}

// TestRedisRestart kills Redis with tasks on the queue and starts it again on its append-only file.
func TestRedisRestart(t *testing.T) {
	t.Parallel()
	r := startRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	c := queue.NewClient(r.client(t), nil)
	var want []string
	for i := range 50 {
		id := fmt.Sprintf("job_%d", i)
		want = append(want, id)
		if i == 25 {
			r.kill()
			err := c.Enqueue(t.Context(), "cpu", task(id), queue.EnqueueOptions{ID: id})
			if farm.CodeOf(err) != farm.CodeUnavailable {
				t.Errorf("Enqueue while Redis is down = %v, want unavailable", err)
			}
			r.start(t)
		}
		send(t, c, id)
	}
	got := make(chan queue.Task, 1000)
	serve(t, r.dial, got)
	collect(t, got, want)
}

func task(id string) queue.Task {
	return queue.Task{Type: queue.TypeJob, Ref: farm.Ref{Tenant: "acme", ID: id}}
}

func serve(t testing.TB, dial func() redis.UniversalClient, got chan<- queue.Task) {
	t.Helper()
	s, err := queue.NewServer(dial, queue.ServerConfig{
		Queues: map[string]int{"cpu": 1}, Concurrency: 4,
		Handler: func(_ context.Context, task queue.Task) error { got <- task; return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
}

func send(t testing.TB, c *queue.Client, id string) {
	t.Helper()
	if err := c.Enqueue(t.Context(), "cpu", task(id), queue.EnqueueOptions{ID: id}); err != nil {
		t.Fatalf("Enqueue(%s) = %v", id, err)
	}
}

func receive(t testing.TB, got <-chan queue.Task) {
	t.Helper()
	select {
	case <-got:
	case <-time.After(patience):
		t.Fatal("no task arrived")
	}
}

// collect waits until all have arrived; some may come more than once.
func collect(t *testing.T, got <-chan queue.Task, want []string) {
	t.Helper()
	missing := map[string]bool{}
	for _, id := range want {
		missing[id] = true
	}
	for late := time.After(patience * 3); len(missing) > 0; {
		select {
		case task := <-got:
			delete(missing, task.Ref.ID)
		case <-late:
			t.Fatalf("%d of %d tasks did not arrive: %v", len(missing), len(want), missing)
		}
	}
}

// BenchmarkHop measures from before Enqueue until the handler has the task, one task at a time on an idle server.
func BenchmarkHop(b *testing.B) {
	for _, mode := range []string{"default", "poll5ms", "hook"} {
		b.Run(mode, func(b *testing.B) {
			r := startRedis(b)
			got := make(chan queue.Task, 10)
			if mode == "hook" {
				serve(b, r.dial, got)
			} else {
				poll(b, r.client(b), mode, got)
			}
			c := queue.NewClient(r.client(b), nil)
			send(b, c, "job_warm")
			receive(b, got)
			var hops []time.Duration
			for i := 0; b.Loop(); i++ {
				start := time.Now()
				send(b, c, fmt.Sprintf("job_%d", i))
				receive(b, got)
				hops = append(hops, time.Since(start))
				if mode == "hook" { // let the server come to rest, or the next task meets it awake
					<-time.After(5 * time.Millisecond)
				}
			}
			slices.Sort(hops)
			b.ReportMetric(float64(hops[len(hops)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(hops[len(hops)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}

// poll runs asynq as it comes, or with a short interval.
func poll(b *testing.B, rdb redis.UniversalClient, mode string, got chan<- queue.Task) {
	b.Helper()
	cfg := asynq.Config{Concurrency: 4, Queues: map[string]int{"cpu": 1}, LogLevel: asynq.ErrorLevel}
	if mode == "poll5ms" {
		cfg.TaskCheckInterval = 5 * time.Millisecond
	}
	s := asynq.NewServerFromRedisClient(rdb, cfg)
	if err := s.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { got <- queue.Task{}; return nil })); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Shutdown)
}

// server is a redis-server of one test.
type server struct {
	dir, socket string
	args        []string
	cmd         *exec.Cmd
}

func startRedis(t testing.TB, args ...string) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "sf") // t.TempDir may be too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	r := &server{dir: dir, socket: filepath.Join(dir, "redis.sock"), args: args}
	t.Cleanup(func() {
		r.kill()
		_ = os.RemoveAll(dir)
	})
	r.start(t)
	return r
}

func (r *server) start(t testing.TB) {
	t.Helper()
	r.cmd = exec.Command("redis-server", append([]string{
		"--port", "0", "--unixsocket", r.socket, "--dir", r.dir, "--save", "", "--loglevel", "warning",
	}, r.args...)...)
	r.cmd.Stderr = os.Stderr
	if err := r.cmd.Start(); err != nil {
		t.Fatalf("start redis-server: %v", err)
	}
	rdb := r.dial()
	defer rdb.Close()
	for deadline := time.Now().Add(10 * time.Second); rdb.Ping(t.Context()).Err() != nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("redis-server does not answer")
		}
	}
}

func (r *server) kill() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
}

func (r *server) dial() redis.UniversalClient {
	return redis.NewClient(&redis.Options{Network: "unix", Addr: r.socket})
}

func (r *server) client(t testing.TB) redis.UniversalClient {
	t.Helper()
	rdb := r.dial()
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// proxy stands between a client and Redis, and can be cut.
type proxy struct {
	listener net.Listener
	to       string
	mu       sync.Mutex
	refused  bool
	open     map[net.Conn]struct{}
	wg       sync.WaitGroup
}

func newProxy(t *testing.T, socket string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, to: socket, open: map[net.Conn]struct{}{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) dial() redis.UniversalClient {
	return redis.NewClient(&redis.Options{Addr: p.listener.Addr().String()})
}

func (p *proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("unix", p.to)
		p.mu.Lock()
		if err != nil || p.refused {
			_ = in.Close()
			if err == nil {
				_ = out.Close()
			}
			p.mu.Unlock()
			continue
		}
		p.open[in], p.open[out] = struct{}{}, struct{}{}
		p.mu.Unlock()
		p.wg.Go(func() { p.copy(in, out) })
		p.wg.Go(func() { p.copy(out, in) })
	}
}

func (p *proxy) copy(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err == nil {
			_, err = to.Write(buffer[:n])
		}
		if err != nil {
			_ = to.Close()
			_ = from.Close()
			p.mu.Lock()
			delete(p.open, to)
			delete(p.open, from)
			p.mu.Unlock()
			return
		}
	}
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.open {
		_ = conn.Close()
	}
}

func (p *proxy) refuse(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = yes
}
