// Package workertest is shared by the tests of the worker's packages: a farm whose records, object store and agents are real, and
// whose engine is a fake that speaks Docker's API.
package workertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hashicorp/yamux"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/embedded"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/node"
)

// Tenant owns all records of tests; Node is the identity of the engine.
const (
	Tenant = "acme"
	Node   = "n1"
)

// Farm is a farm without a worker.
type Farm struct {
	T        *testing.T
	Log      *slog.Logger
	Redis    *miniredis.Miniredis
	Store    *store.Store
	Dispatch *dispatch.Dispatcher
	Blobs    *blob.Store
	Engine   *engine.Engine
	Fake     *Engine // the server of Engine
}

// New makes a farm. TestMain must have called Main.
func New(t *testing.T) *Farm {
	t.Helper()
	server := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	b := &Farm{T: t, Log: slog.New(slog.DiscardHandler), Redis: server, Fake: newEngine(t)}
	var err error
	b.Blobs, err = blob.New(blob.Config{Endpoint: s3.Endpoint(), AccessKey: "access", SecretKey: "secret-key", Bucket: "farm", Region: "us-east-1"})
	testbed.Must(t, err)
	testbed.Must(t, b.Blobs.EnsureBucket(t.Context()))
	b.Store = store.New(rdb, queue.EnqueueLua(), store.Options{Logger: b.Log, Documents: b.Blobs})
	t.Cleanup(func() { _ = b.Store.Close() })
	b.Engine, err = engine.New(engine.Config{Host: "tcp://" + strings.TrimPrefix(b.Fake.URL, "http://"), Namespace: "test", Logger: b.Log})
	testbed.Must(t, err)
	t.Cleanup(func() { _ = b.Engine.Close() })
	b.Dispatch = dispatch.New(b.Store, queue.NewClient(rdb, b.Log), farm.DefaultLimits(), b.Log)
	return b
}

// BrokenBlobs is an object store that does not answer.
func (b *Farm) BrokenBlobs() *blob.Store {
	b.T.Helper()
	blobs, err := blob.New(blob.Config{Endpoint: "http://127.0.0.1:1", AccessKey: "access", SecretKey: "secret-key", Bucket: "farm", Region: "us-east-1"})
	testbed.Must(b.T, err)
	return blobs
}

// BlobsBehind is the farm's object store behind a handler that sees each request, and passes it on or not.
func (b *Farm) BlobsBehind(wrap func(s3 http.Handler) http.Handler) *blob.Store {
	b.T.Helper()
	to, err := url.Parse(s3.Endpoint())
	testbed.Must(b.T, err)
	proxy := &httputil.ReverseProxy{
		Rewrite:  func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = r.In.Host },
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	server := httptest.NewServer(wrap(proxy))
	server.Config.ErrorLog = proxy.ErrorLog
	b.T.Cleanup(server.Close)
	blobs, err := blob.New(blob.Config{Endpoint: server.URL, AccessKey: "access", SecretKey: "secret-key", Bucket: "farm", Region: "us-east-1"})
	testbed.Must(b.T, err)
	return blobs
}

// StoreBehind is the farm's records behind a hook that sees each command.
func (b *Farm) StoreBehind(hook redis.Hook) *store.Store {
	b.T.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: b.Redis.Addr(), MaxRetries: -1})
	rdb.AddHook(hook)
	b.T.Cleanup(func() { _ = rdb.Close() })
	s := store.New(rdb, queue.EnqueueLua(), store.Options{Logger: b.Log, Documents: b.Blobs})
	b.T.Cleanup(func() { _ = s.Close() })
	return s
}

// NewNode makes the node of a worker, with its identity.
func (b *Farm) NewNode() *node.Node {
	b.T.Helper()
	n, err := node.New(b.T.Context(), node.Deps{Engine: b.Engine, Log: b.Log, Now: time.Now})
	testbed.Must(b.T, err)
	n.UseIdentity(Node, "")
	b.T.Cleanup(n.Close)
	return n
}

// Register makes a worker of the node count as alive.
func (b *Farm) Register(workerID string) {
	b.T.Helper()
	testbed.Must(b.T, b.Store.Heartbeat(b.T.Context(), farm.Worker{ID: workerID, Node: Node}))
}

// Agent starts an agent and connects nodes to it as that of a sandbox, whose container runs.
func (b *Farm) Agent(sandbox farm.Ref, nodes ...*node.Node) *agenttest.Agent {
	b.T.Helper()
	a := agenttest.Start(b.T, "/usr/bin:/bin", nil)
	b.Fake.Put(sandbox.ID, true)
	for _, n := range nodes {
		testbed.Must(b.T, n.UseConnection(b.T.Context(), sandbox.ID, func() *client.Client { return agenttest.Connect(b.T, a.Server) }))
	}
	return a
}

// s3 is the object store of all tests: a process can run one.
var s3 *embedded.S3

type withS3 struct{ *testing.M }

// Run runs the tests beside an object store, and stops it before goroutines are counted.
func (m withS3) Run() int {
	dir, err := os.MkdirTemp("", "worker-s3-")
	if err == nil {
		s3, err = embedded.StartS3(context.Background(), embedded.S3Config{Dir: dir, Listen: "127.0.0.1:0", AccessKey: "access", SecretKey: "secret-key", Logger: slog.New(slog.DiscardHandler)})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "start S3:", err)
		return 1
	}
	code := m.M.Run()
	if err := s3.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "stop S3:", err)
		code = 1
	}
	_ = os.RemoveAll(dir)
	return code
}

// Main runs a package's tests beside an object store, and checks that no goroutine is left. The S3 service's HTTP server has two
// goroutines of its own that sleep and wake now and then.
func Main(m *testing.M) {
	goleak.VerifyTestMain(withS3{m},
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

// ErrTest is an error that a test makes.
var ErrTest = errors.New("made to fail")

// Task is the task of a job, as queues deliver it.
func Task(ref farm.Ref) queue.Task { return queue.Task{Type: queue.TypeJob, Ref: ref} }

// In returns a clock that is ahead by d.
func In(d time.Duration) func() time.Time { return func() time.Time { return time.Now().Add(d) } }

// Hostile returns a client of a fake agent that answers with a handler.
func Hostile(t *testing.T, h http.Handler) *client.Client {
	t.Helper()
	ours, theirs := net.Pipe()
	session, err := yamux.Server(theirs, nil)
	testbed.Must(t, err)
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(session)
	}()
	c, err := client.New(ours, client.Options{})
	testbed.Must(t, err)
	t.Cleanup(func() {
		_ = c.Close()
		_ = server.Close()
		_ = session.Close()
		<-served
	})
	return c
}
