package verbs

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

var topNow = time.Date(2026, 5, 1, 14, 3, 7, 0, time.UTC)

func topFarm() snapshot {
	return snapshot{
		Queues: []wire.Queue{
			{Name: "cpu", Depth: 3, Running: 2, OldestSeconds: 4.4, EndedPerMinute: 12.34}, {Name: "gpu", Depth: 12, OldestSeconds: 130}, {Name: "node-ab12", Running: 3},
		},
		Workers: []wire.Worker{
			{
				ID: "wrk_1", Host: "host-a", Queues: []string{"cpu", "node-ab12"}, Running: 5, Slots: 64, Sandboxes: 2,
				Capacity: wire.Room{MemoryMB: 7680, CPUs: 8}, Promised: wire.Room{MemoryMB: 1536, CPUs: 2},
				Pool: []wire.PoolStock{{Image: "python", Target: 3, Ready: 1}, {Image: "node", Target: 1, Ready: 1}},
				GPUs: []wire.GPUDevice{{ID: "0", Model: "t4"}, {ID: "1", Model: "a100", Leased: true}, {ID: "2", Model: "a100"}}, GPUsLeased: 1, Drain: &wire.Drain{State: "draining", Sandboxes: 2, Jobs: 5},
				StartedAt: topNow.Add(-3 * time.Hour), SeenAt: topNow.Add(-time.Second),
			},
			{ID: "wrk_2", Host: "host-b", Queues: []string{"cpu"}, Slots: 64, Problem: "no engine\x1b[2J answers: /var/run/docker.sock", StartedAt: topNow.Add(-90 * time.Second), SeenAt: topNow},
		},
		Activity: []wire.Minute{{Ended: 2, Failed: 1, MaxWaitMS: 1234}, {}, {Ended: 3, MaxWaitMS: 20}},
	}
}

func TestTopPage(t *testing.T) {
	t.Parallel()
	lines := page("http://127.0.0.1:8000", topFarm(), topNow)
	want := `http://127.0.0.1:8000  14:03:07  2 workers, 5 of 128 slots in use, 15 jobs waiting, the next since 2m
last hour: 5 jobs ended, 1 failed, timed out or lost, longest wait 1.2s

QUEUE      WAITING  RUNNING  OLDEST  PER MINUTE  SERVED BY
cpu        3        2        4s      12.3        host-a, host-b
gpu        12       0        2m      -           nobody
node-ab12  0        3        -       -           host-a

HOST    STATE                             JOBS  SANDBOXES  RESERVED MEMORY  RESERVED CORES  GPUS          POOL  UP  SEEN    WORKER
host-a  draining (sandboxes: 2, jobs: 5)  5/64  2          1.5/7.5 GiB      2.0/8.0         1/3 a100, t4  2/4   3h  1s ago  wrk_1
host-b  no engine�[2J answers: /var/run…  0/64  0          -                -               -             -     1m  0s ago  wrk_2
`
	testbed.Diff(t, "page", want, plain(lines))
	var red []string
	for _, l := range lines {
		if l.style == "\x1b[31m" {
			red = append(red, strings.Fields(l.text)[0])
		}
	}
	testbed.Diff(t, "lines in red", []string{"gpu", "host-b"}, red)
}

func TestTopPageOfAFarmWithoutWorkers(t *testing.T) {
	t.Parallel()
	text := plain(page("http://x", snapshot{Queues: []wire.Queue{{Name: "cpu"}}}, topNow))
	if !strings.Contains(text, "0 workers, 0 of 0 slots in use, 0 jobs waiting\n") || !strings.Contains(text, "No live worker") {
		t.Errorf("page:\n%s", text)
	}
}

// TestTopOfAPartShowsNoJobsOfOthers: a key that may not see them read of 0 of 0 slots.
func TestTopOfAPartShowsNoJobsOfOthers(t *testing.T) {
	t.Parallel()
	s := snapshot{Queues: []wire.Queue{{Name: "cpu"}}, Workers: []wire.Worker{{ID: "wrk_1", Sandboxes: 1, StartedAt: topNow, SeenAt: topNow}}, partial: true}
	text := plain(page("http://x", s, topNow))
	for _, want := range []string{"  1 worker, 0 jobs waiting\n", "\n-     ok     -     1          -                -               -     -     0s  0s ago  wrk_1\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("page without %q:\n%s", want, text)
		}
	}
}

func TestTopCountsCallbacksApart(t *testing.T) {
	t.Parallel()
	queues := []wire.Queue{{Name: "cpu"}, {Name: "callbacks", Depth: 2}}
	if text := plain(page("http://x", snapshot{Queues: queues}, topNow)); !strings.Contains(text, "0 jobs waiting, 2 callbacks to deliver\n") {
		t.Errorf("page:\n%s", text)
	}
}

func TestServingNamesHosts(t *testing.T) {
	t.Parallel()
	var workers []wire.Worker
	for _, host := range []string{"e", "d", "c", "b", "a", "a"} {
		workers = append(workers, wire.Worker{Host: host, Queues: []string{"cpu"}})
	}
	for n, want := range map[int]string{0: "nobody", 1: "e", 4: "b, c, d, e", 5: "a, b, c and 2 more", 6: "a, b, c and 2 more"} {
		if got := serving(workers[:n], "cpu"); got != want {
			t.Errorf("%d workers: %q, want %q", n, got, want)
		}
	}
}

// buffer is a terminal that stores what is written to it, and reports each page.
type buffer struct {
	mu    sync.Mutex
	text  strings.Builder
	pages chan string
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text.Write(p)
	if strings.HasPrefix(string(p), home) {
		b.pages <- string(p)
	}
	return len(p), nil
}

// watching is top in a terminal of 60 columns and 8 lines.
func watching(t *testing.T) (b *buffer, keys chan byte, down *atomic.Bool, ended chan struct{}, stop context.CancelFunc) {
	t.Helper()
	down = &atomic.Bool{}
	farm := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/v1/activity" { // the key has no scope admin
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"status":403,"code":"unauthorized","detail":"scope"}`))
		} else if r.URL.Path == "/v1/queues" {
			_ = json.NewEncoder(w).Encode(wire.Items[wire.Queue]{Items: topFarm().Queues})
		} else {
			_ = json.NewEncoder(w).Encode(wire.Items[wire.Worker]{Items: topFarm().Workers})
		}
	}))
	t.Cleanup(farm.Close)
	c, err := client.New(farm.URL)
	testbed.Must(t, err)
	b, keys, ended = &buffer{pages: make(chan string, 100)}, make(chan byte), make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	s := &screen{out: b, keys: keys, size: func() (int, int) { return 60, 8 }}
	go func() {
		defer close(ended)
		s.watch(ctx, c, time.Hour)
	}()
	return b, keys, down, ended, stop
}

func TestTopWatches(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(keys chan byte, stop context.CancelFunc){
		"KeyQ":    func(keys chan byte, _ context.CancelFunc) { keys <- 'q' },
		"CtrlC":   func(keys chan byte, _ context.CancelFunc) { keys <- 3 },
		"Context": func(_ chan byte, stop context.CancelFunc) { stop() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, keys, down, ended, stop := watching(t)
			first := <-b.pages
			for i, text := range strings.Split(strings.TrimPrefix(first, home), "\r\n") {
				text = strings.NewReplacer(bold, "", red, "", plainStyle, "", clearLine, "", clearBelow, "").Replace(text)
				if n := len([]rune(text)); n > 60 || i > 7 {
					t.Errorf("line %d has %d columns: %q", i, n, text)
				}
			}
			if !strings.Contains(first, "… 3 more lines") || !strings.Contains(first, red+"gpu") {
				t.Errorf("first page:\n%q", first)
			}
			down.Store(true)
			keys <- 'x' // has no meaning
			keys <- ' ' // refreshes
			second := <-b.pages
			if !strings.Contains(second, "The farm does not answer") || !strings.Contains(second, "cpu ") {
				t.Errorf("a farm that does not answer:\n%q", second)
			}
			end(keys, stop)
			<-ended
			if text := b.text.String(); !strings.HasPrefix(text, enterScreen) || !strings.HasSuffix(text, leaveScreen) {
				t.Errorf("the terminal is left as %q", text[max(0, len(text)-40):])
			}
		})
	}
}
