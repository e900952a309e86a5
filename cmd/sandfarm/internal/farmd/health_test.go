package farmd_test

import (
	"context"
	"fmt"
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
	"github.com/sandfarm/sandfarm/internal/testbed"
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
		testbed.Diff(t, "asked for", "/healthz", r.URL.Path)
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
	testbed.Must(t, err)
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
	testbed.Must(t, err)
	testbed.Must(t, st.Heartbeat(t.Context(), farm.Worker{ID: farm.NewID(farm.WorkerPrefix), Host: host + "-other"}))
	expect(t, "a worker on another host", farmd.Health(t.Context(), s, "worker"), "there is no live worker on "+host)
	testbed.Must(t, st.Heartbeat(t.Context(), farm.Worker{ID: farm.NewID(farm.WorkerPrefix), Host: host}))
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

func TestRedisURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"redis://10.0.0.1:6380/2": "10.0.0.1:6380",
		"unix:///run/redis.sock":  "/run/redis.sock",
		"sentinel://a/main":       "main by the sentinels a:26379",
		"sentinel://u:p%40ss@a:1,b,[::1]:3/main?db=4&pool_size=9": "main by the sentinels a:1, b:26379, [::1]:3",
		"sentinels://:pass@a:1/main?sentinel_password=other":      "main by the sentinels a:1",
	} {
		got, err := farmd.ParseRedis(text)
		if err != nil || got.String() != want {
			t.Errorf("%s is %v, %v; want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"http://nowhere":                           "sentinel://host1",
		"sentinel://a:1":                           "names no primary",
		"sentinel://a:1/":                          "names no primary",
		"sentinel://a:1/b/c":                       "names no primary",
		"sentinel:///main":                         "sentinel 1 is not",
		"sentinel://a:1,,b/main":                   "sentinel 2 is not",
		"sentinel://a:1:2/main":                    "sentinel 1 is not",
		"sentinel://u:sec%ret@a:1/main":            "escape",
		"sentinel://a:1/main?route_randomly=true":  "route_randomly",
		"sentinel://a:1/main?db=secret":            "whole numbers",
		"sentinel://a:1/main?read_timeout=secretl": "whole numbers",
	} {
		_, err := farmd.ParseRedis(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "sec") {
			t.Errorf("%s: %v; want an error that says %q and no password", text, err, want)
		}
	}
	for _, n := range []int{31, 32, 33} {
		hosts := make([]string, n)
		for i := range hosts {
			hosts[i] = fmt.Sprintf("h%d:1", i)
		}
		if _, err := farmd.ParseRedis("sentinel://" + strings.Join(hosts, ",") + "/main"); (err != nil) != (n > 32) {
			t.Errorf("%d sentinels: %v", n, err)
		}
	}
}

// The user and password of the URL are those of Redis; the sentinels have their own. TLS is for both.
func TestSentinelCredentials(t *testing.T) {
	t.Parallel()
	address, err := farmd.ParseRedis("sentinels://u:p%40ss@a:1/main?db=4&sentinel_username=s&sentinel_password=q")
	testbed.Must(t, err)
	rdb := address.Open()
	defer func() { _ = rdb.Close() }()
	client, ok := rdb.(*redis.Client)
	if !ok {
		t.Fatalf("Open makes a %T", rdb)
	}
	o := client.Options()
	if o.Username != "u" || o.Password != "p@ss" || o.DB != 4 || o.TLSConfig == nil || o.MaxRetries != 1 || !o.ContextTimeoutEnabled {
		t.Errorf("options of Redis: user %q, db %d, TLS %v, %d retries", o.Username, o.DB, o.TLSConfig != nil, o.MaxRetries)
	}
}
