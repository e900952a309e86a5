package farmd_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/scheduler"
)

// expect checks that an error contains a text; "" expects no error.
func expect(t *testing.T, what string, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%s: error %v, want %q", what, err, want)
	}
}

func TestHealthOfTheAPI(t *testing.T) {
	t.Parallel()
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.WriteHeader(status)
	}))
	defer server.Close()
	s := &farmd.Settings{}
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "http://"), ":")
	for _, host := range []string{"127.0.0.1", "0.0.0.0", ""} {
		s.API.Listen = host + ":" + port
		expect(t, "well, listening on "+s.API.Listen, farmd.Health(t.Context(), s, "api"), "")
	}
	status = http.StatusInternalServerError
	expect(t, "ill", farmd.Health(t.Context(), s, "api"), "500")
	server.Close()
	expect(t, "gone", farmd.Health(t.Context(), s, "api"), "ask the API")
}

// The proxy is asked through its socket, and asks the engine behind it.
func TestHealthOfTheEngineProxy(t *testing.T) {
	t.Parallel()
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", "1.41") }))
	defer engine.Close()
	dir, err := os.MkdirTemp("", "sfp") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s := &farmd.Settings{EngineProxy: farmd.ProxySettings{
		Socket: dir + "/engine.sock", Access: "all", Host: "tcp://" + engine.Listener.Addr().String(),
	}}
	expect(t, "no proxy", farmd.Health(t.Context(), s, "engine-proxy"), "ask the engine proxy")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- farmd.RunEngineProxy(ctx, s) }()
	for farmd.Health(t.Context(), s, "engine-proxy") != nil {
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	if info, err := os.Stat(s.EngineProxy.Socket); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	engine.Close()
	expect(t, "no engine", farmd.Health(t.Context(), s, "engine-proxy"), "503")
	stop()
	expect(t, "the end", <-ended, "")
	s.EngineProxy.Host = "unix://" + s.EngineProxy.Socket
	expect(t, "itself behind it", farmd.RunEngineProxy(t.Context(), s), "engine_proxy.host")
}

func TestHealthOfWorkerAndScheduler(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	s := &farmd.Settings{Redis: farmd.RedisSettings{URL: "redis://" + server.Addr()}, Limits: farm.DefaultLimits()}
	st := store.New(redis.NewClient(&redis.Options{Addr: server.Addr()}), queue.EnqueueLua(), store.Options{Limits: s.Limits})
	t.Cleanup(func() { _ = st.Close() })
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Heartbeat(t.Context(), farm.Worker{ID: farm.NewID(farm.WorkerPrefix), Host: host + "-other"}); err != nil {
		t.Fatal(err)
	}
	expect(t, "a worker on another host", farmd.Health(t.Context(), s, "worker"), "there is no live worker on "+host)
	if err := st.Heartbeat(t.Context(), farm.Worker{ID: farm.NewID(farm.WorkerPrefix), Host: host}); err != nil {
		t.Fatal(err)
	}
	expect(t, "a worker here", farmd.Health(t.Context(), s, "worker"), "")
	server.FastForward(store.HeartbeatTTL + time.Second)
	expect(t, "a worker that stands still", farmd.Health(t.Context(), s, "worker"), "no live worker")

	expect(t, "no scheduler", farmd.Health(t.Context(), s, "scheduler"), "no scheduler leads")
	if held, err := st.Lock(t.Context(), scheduler.LockName, "me", time.Minute); err != nil || !held {
		t.Fatalf("held %v, error %v", held, err)
	}
	expect(t, "a scheduler", farmd.Health(t.Context(), s, "scheduler"), "")
	server.Close()
	expect(t, "no Redis", farmd.Health(t.Context(), s, "scheduler"), "read lock")
	expect(t, "no such service", farmd.Health(t.Context(), s, "index"), "name api, worker, scheduler or engine-proxy")
	expect(t, "no Redis is named", farmd.Health(t.Context(), &farmd.Settings{}, "worker"), "SANDFARM_REDIS_URL")
}
