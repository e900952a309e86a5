package farmd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/scheduler"
)

// Verbs with --local print their answers, and no lines of a log.
func TestOperatorLogsNothing(t *testing.T) {
	redis := miniredis.RunT(t)
	t.Setenv("SANDFARM_DATA", t.TempDir())
	t.Setenv("SANDFARM_REDIS_URL", "redis://"+redis.Addr())
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	testbed.Must(t, err)
	old := os.Stderr
	os.Stderr = file
	t.Cleanup(func() { os.Stderr = old; _ = file.Close() })
	direct, done, err := farmd.Operator(t.Context(), load(t, ""), "test")
	testbed.Must(t, err)
	c, err := client.New(client.DefaultURL, client.WithHTTPClient(direct))
	testbed.Must(t, err)
	cpus := 1.0
	if _, err := c.SetTenant(t.Context(), "acme", wire.TenantRequest{MaxCPUs: &cpus}); err != nil {
		t.Error(err)
	}
	if err := done(); err != nil && !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	if text, err := os.ReadFile(file.Name()); err != nil || len(text) > 0 {
		t.Errorf("standard error has %q, %v", text, err)
	}
}

// A command with --local where no farm runs has one error, without the lines that the Redis client logs for each try.
func TestLocalWithoutFarmLogsNothing(t *testing.T) {
	t.Setenv("SANDFARM_DATA", t.TempDir())
	t.Setenv("SANDFARM_REDIS_URL", "")
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	testbed.Must(t, err)
	defer func() { _ = file.Close() }()
	old, err := unix.Dup(2) // that client has kept its os.Stderr
	testbed.Must(t, err)
	if err := unix.Dup3(int(file.Fd()), 2, 0); err != nil { //nolint:gosec // a descriptor is small
		t.Fatal(err)
	}
	_, _, failed := farmd.Local("test")(t.Context(), "")
	testbed.Must(t, errors.Join(unix.Dup3(old, 2, 0), unix.Close(old)))
	if failed == nil || !strings.Contains(failed.Error(), "no farm of this machine runs") {
		t.Errorf("Local: %v", failed)
	}
	if text, err := os.ReadFile(file.Name()); err != nil || len(text) > 0 {
		t.Errorf("standard error has %q, %v", text, err)
	}
}

// Who can reach Redis gets in without a key, even if the farm has keys.
func TestOperatorNeedsNoKey(t *testing.T) {
	redis := miniredis.RunT(t)
	t.Setenv("SANDFARM_DATA", t.TempDir())
	t.Setenv("SANDFARM_REDIS_URL", "redis://"+redis.Addr())
	s := load(t, "")
	for range 2 { // the second time the farm has keys
		direct, done, err := farmd.Operator(t.Context(), s, "test")
		testbed.Must(t, err)
		c, err := client.New(client.DefaultURL, client.WithHTTPClient(direct))
		testbed.Must(t, err)
		made, err := c.CreateKey(t.Context(), wire.KeyRequest{Tenant: "ops", Scopes: []string{"admin"}})
		if err != nil || made.Secret == "" {
			t.Errorf("%+v, %v", made, err)
		}
		if err := done(); err != nil && !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}
}

func TestOperatorOfNoFarm(t *testing.T) {
	t.Setenv("SANDFARM_DATA", filepath.Join(t.TempDir(), "data"))
	if _, _, err := farmd.Operator(t.Context(), load(t, ""), "test"); err == nil || !strings.Contains(err.Error(), "sandfarm up") {
		t.Errorf("without a farm: %v", err)
	}
}

func TestConfigKeyPrintsAKeyAndTheSettingForIt(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{"default": nil, "team-blue": {"team-blue"}} {
		var out testbed.Log
		streams := verbs.Streams{In: strings.NewReader(""), Out: &out, Err: &out, Getenv: func(string) string { return "" }}
		root := &cobra.Command{Use: "sandfarm"}
		farmd.Add(root, streams, verbs.Add(root, streams), "test")
		root.SetArgs(append([]string{"config", "key"}, args...))
		testbed.Must(t, root.ExecuteContext(t.Context()))
		found := regexp.MustCompile(`^SANDFARM_API_KEY=(sf_[0-9a-f]{48})\nSANDFARM_API_KEYS=(.*)\n$`).FindStringSubmatch(out.String())
		if found == nil {
			t.Fatalf("printed %q", out.String())
		}
		var setting api.KeyConfig
		testbed.Must(t, setting.UnmarshalText([]byte(found[2])))
		sum := sha256.Sum256([]byte(found[1]))
		if setting.Tenant != want || setting.SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("%q is no setting for tenant %s and key %s", found[2], want, found[1])
		}
	}
}

func TestAllowedImagesAreIDs(t *testing.T) {
	t.Parallel()
	id := "sha256:" + strings.Repeat("a1", 32)
	if got := load(t, file(t, "[images]\nallowed = [\""+id+"\"]")).Worker.AllowedImages; !slices.Equal(got, []string{id}) {
		t.Errorf("workers may use %q", got)
	}
	for _, wrong := range []string{"python", "sandfarm/python:latest", "repo@" + id, id + "0", strings.ToUpper(id), id[:20], ""} {
		if _, err := farmd.Load(file(t, "[images]\nallowed = [\""+wrong+"\"]")); err == nil || !strings.Contains(err.Error(), "images.allowed contains") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

// A key that is missing or no key stops the start, rather than letting every image in.
func TestSignaturesNeedAKey(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testbed.Must(t, err)
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	testbed.Must(t, err)
	keyFile := filepath.Join(folder, "cosign.pub")
	testbed.Must(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o600))
	if got := load(t, file(t, "[images]")).Worker.Signatures; got != nil {
		t.Errorf("without settings: %v", got)
	}
	got := load(t, file(t, "[images]\nsignature_key = \""+keyFile+"\"\nsignatures = \""+folder+"\"")).Worker.Signatures
	if got == nil || got.Path != folder || len(got.Keys) != 1 || !got.Keys[0].Equal(key.Public()) {
		t.Errorf("workers check %+v", got)
	}
	for _, c := range []struct{ settings, want string }{
		{"signature_key = \"" + keyFile + "\"", "images.signature_key and images.signatures belong together"},
		{"signatures = \"" + folder + "\"", "images.signature_key and images.signatures belong together"},
		{"signature_key = \"" + folder + "/none\"\nsignatures = \"" + folder + "\"", "images.signature_key: "},
	} {
		if _, err := farmd.Load(file(t, "[images]\n"+c.settings)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.settings, err)
		}
	}
}

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
	beside := &farmd.Settings{API: api.Config{Listen: ":8000"}} // of sandfarm up
	expect(t, "no Redis is named", farmd.Health(t.Context(), beside, "worker"), "SANDFARM_REDIS_URL")
	expect(t, "no Redis is named", farmd.Health(t.Context(), beside, "worker"), "http://127.0.0.1:8000/readyz")
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
