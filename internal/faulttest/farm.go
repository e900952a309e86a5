// Package faulttest runs a whole farm as separate processes of the built program and takes components away from it: kill -9, SIGTERM,
// SIGSTOP, links that are cut or held, calls of Redis at which a process is stopped (Farm.Link), an object store that is away, slow, full or
// answers errors (Farm.S3Link), data that is restored or wiped. Its ledger has the accepted jobs, what their callers were told, and what each
// of them did in its sandbox. After each fault it prints one line: how many accepted jobs were lost, ran twice or were misreported, how many
// had text twice, how many containers were left, and how long a neighbour's job waited. Any number but 0 fails the test; times are printed.
//
// Use it in three steps: New makes a farm, Farm.Case opens the ledger of one fault, Case.End checks it. Farm.End then looks for what all the
// faults left: containers, keys, goroutines, descriptors. The package is for tests; its own tests are `make test-faults`, a sample, and
// `make test-faults-all`, twenty rounds of each kind. Their time limits only find out that something hangs: how fast the farm recovers is for
// `make bench`.
package faulttest

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// Names of the components of which a farm has one. Workers are "worker-1" and so on, schedulers "scheduler-1".
const (
	Redis = "redis"
	S3    = "s3"
	API   = "api"
)

// Config describes the components of a farm.
type Config struct {
	Program    string           // the built sandfarm; needed
	MinIO      string           // the MinIO server; needed
	Workers    int              // default 2
	Schedulers int              // default 2
	Env        []string         // settings in addition to those of the harness
	Engine     string           // socket of the Docker engine; default that of DOCKER_HOST, else of the machine
	Second     string           // socket of another engine, of the last worker; none by default
	Key        string           // API key of the harness, for a farm with keys
	Cluster    *testbed.Cluster // in place of engines: sandboxes are Pods there
	Links      bool             // each process has its own way to Redis, and all share one to the object store, which a test can spoil: Link, S3Link

	// Command changes the command line of a component before the farm starts; nil: no change.
	Command func(name string, argv []string) []string
}

// Farm is a farm of separate processes on free ports, with a namespace of its own in the engine.
type Farm struct {
	*client.Client

	t          testing.TB
	cfg        Config
	dir        string
	url        string
	namespace  string
	redis      *redis.Client
	env        []string
	components map[string]*component
	containers containers
	links      map[string]*testbed.Proxy // with Config.Links, by the names of components
	s3         *S3Link                   // with Config.Links
	idleUse    map[string]use            // of each kind of component, when the farm had nothing to do
	probe      string                    // the sandbox of Case.probe
	idle       []string                  // sandboxes that no case uses now
	started    time.Time
	cases      int // so far
}

// New starts a farm and waits until it is ready. After the test it is removed, with everything that it created in the engine.
func New(t testing.TB, cfg Config) *Farm {
	t.Helper()
	cfg.Workers, cfg.Schedulers = cmp.Or(cfg.Workers, 2), cmp.Or(cfg.Schedulers, 2)
	cfg.Engine = cmp.Or(cfg.Engine, strings.TrimPrefix(os.Getenv("DOCKER_HOST"), "unix://"), "/var/run/docker.sock")
	dir, store, s3, api := t.TempDir(), testbed.Address(t), testbed.Address(t), testbed.Address(t)
	f := &Farm{
		t: t, cfg: cfg, dir: dir, url: "http://" + api, namespace: "sandfarm-faults-" + strings.ReplaceAll(api, ":", "-"),
		redis: redis.NewClient(&redis.Options{Addr: store, DialTimeout: time.Second, ReadTimeout: time.Second}), components: map[string]*component{},
		links: map[string]*testbed.Proxy{}, started: time.Now(),
	}
	f.env = slices.Concat(os.Environ(), []string{
		"SANDFARM_DATA=" + dir, "SANDFARM_API_LISTEN=" + api, "SANDFARM_REDIS_URL=redis://" + store,
		"SANDFARM_S3_ENDPOINT=http://" + s3, "SANDFARM_S3_ACCESS_KEY=sandfarm", "SANDFARM_S3_SECRET_KEY=sandfarm-secret",
		"MINIO_ROOT_USER=sandfarm", "MINIO_ROOT_PASSWORD=sandfarm-secret", "MINIO_BROWSER=off",
		"SANDFARM_ENGINE_HOST=unix://" + cfg.Engine, "SANDFARM_ENGINE_NAMESPACE=" + f.namespace, "SANDFARM_WORKER_STOP_GRACE=1s", "SANDFARM_WORKER_POOL=none",
		"SANDFARM_WORKER_CREATE_TIMEOUT=10m",                                            // on a busy machine; engines that hang are found by worker.engine_timeout
		"SANDFARM_WORKER_MEMORY_OVERCOMMIT=1000", "SANDFARM_WORKER_CPU_OVERCOMMIT=1000", // reservations are tested elsewhere
	}, cfg.Env)
	f.containers = &dockers{[]string{cfg.Engine}, f.namespace}
	switch {
	case cfg.Cluster != nil:
		f.env = append(f.env, cfg.Cluster.Env...)
		f.namespace, f.containers = cfg.Cluster.Namespace, pods{cfg.Cluster}
	case cfg.Second != "":
		f.containers = &dockers{[]string{cfg.Engine, cfg.Second}, f.namespace}
	}
	_, port, _ := net.SplitHostPort(store)
	f.add(Redis, "redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", dir, "--appendonly", "yes", "--save", "")
	f.add(S3, cfg.MinIO, "server", "--quiet", "--address", s3, filepath.Join(dir, "s3"))
	f.add(API, cfg.Program, "api")
	for n := range cfg.Schedulers {
		f.add(fmt.Sprintf("scheduler-%d", n+1), cfg.Program, "scheduler")
	}
	for n := range cfg.Workers {
		argv := []string{cfg.Program, "worker"}
		if n+1 == cfg.Workers && cfg.Second != "" {
			argv = append([]string{"env", "SANDFARM_ENGINE_HOST=unix://" + cfg.Second}, argv...)
		}
		f.add(fmt.Sprintf("worker-%d", n+1), argv...)
	}
	var err error
	f.Client, err = client.New(f.url, client.WithKey(cfg.Key))
	testbed.Must(t, err)
	t.Cleanup(f.remove)
	if cfg.Links {
		f.spoilable(store, s3)
	}
	f.Start(Redis, S3)
	for _, address := range []string{store, s3} {
		f.Until(time.Minute, address+" answers", func() bool {
			conn, err := net.Dial("tcp", address)
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		})
	}
	f.Start(API)
	f.Start(f.Schedulers()...)
	f.Start(f.Workers()...)
	f.AwaitReady()
	f.probe = f.Box(wire.CreateRequest{Name: "probe"})
	f.idleUse = f.using()
	return f
}

// Workers are the names of all workers, running or not.
func (f *Farm) Workers() []string { return f.names("worker-") }

// Schedulers are the names of all schedulers, running or not.
func (f *Farm) Schedulers() []string { return f.names("scheduler-") }

// URL is the address of the API.
func (f *Farm) URL() string { return f.url }

// Redis is a client of the farm's Redis.
func (f *Farm) Redis() *redis.Client { return f.redis }

// Stored is the directory of the bucket. MinIO keeps deleted objects for another five minutes elsewhere.
func (f *Farm) Stored() string { return filepath.Join(f.dir, "s3", "sandfarm") }

// Namespace is the farm's namespace in the engine.
func (f *Farm) Namespace() string { return f.namespace }

// AwaitReady waits until the API is ready and every running worker is registered.
func (f *Farm) AwaitReady() {
	f.t.Helper()
	f.Until(60*time.Second, "the farm is ready", func() bool {
		answer, err := http.Get(f.url + "/readyz")
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK && !slices.ContainsFunc(f.Workers(), func(name string) bool {
			return f.Alive(name) && f.components[name].worker() == ""
		})
	})
}

// Back starts components, and waits until the farm is ready.
func (f *Farm) Back(names ...string) {
	f.t.Helper()
	f.Start(names...)
	f.AwaitReady()
}

// Completed waits until a job has ended: it must have completed. what says whose job it is.
func (f *Farm) Completed(what, job string) {
	f.t.Helper()
	if end, err := f.Wait(f.t.Context(), job); err != nil || end.State != "completed" {
		f.t.Errorf("%s, %s: %v, %s %+v", what, job, err, end.State, end.Error)
	}
}

// AwaitState waits until a sandbox is in one of these states.
func (f *Farm) AwaitState(box string, states ...string) {
	f.t.Helper()
	f.Until(60*time.Second, "sandbox "+box+" is "+strings.Join(states, " or "), func() bool {
		now, err := f.Sandbox(f.t.Context(), box)
		return err == nil && slices.Contains(states, now.State)
	})
}

// createWithin is how long a sandbox may take to start, of several on a busy machine.
const createWithin = 3 * time.Minute

// Box creates a sandbox that is ready. The caller closes it.
func (f *Farm) Box(request wire.CreateRequest) string {
	f.t.Helper()
	box, err := f.create(request)
	testbed.Must(f.t, err)
	return box
}

// create creates a sandbox and waits until it is ready.
func (f *Farm) create(request wire.CreateRequest) (box string, err error) {
	ctx, done := context.WithTimeout(f.t.Context(), createWithin)
	defer done()
	made, err := f.CreateSandbox(ctx, request, client.WithWait(60*time.Second))
	if err == nil && !made.Job.Final() {
		made.Job, err = f.Wait(ctx, made.Job.ID)
	}
	if err == nil && made.Job.State != "completed" {
		err = fmt.Errorf("it is %s: %+v", made.Job.State, made.Job.Error)
	}
	if err != nil {
		return "", fmt.Errorf("create a sandbox: %w", err)
	}
	return made.Sandbox.ID, nil
}

// Until polls a condition; the test fails if it does not come true in time.
func (f *Farm) Until(within time.Duration, what string, ok func() bool) {
	f.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(within); !ok(); <-tick.C {
		if time.Now().After(end) {
			f.t.Fatalf("not within %s: %s\n%s", within, what, f.logs())
		}
	}
}

// Containers lists the sandboxes that have a container, running or not, once for each container.
func (f *Farm) Containers() []string { return f.contained(false) }

// Running lists the sandboxes whose container runs.
func (f *Farm) Running() []string { return f.contained(true) }

func (f *Farm) contained(running bool) []string {
	list, err := f.containers.list(running)
	if err != nil {
		f.t.Errorf("list containers: %v", err)
	}
	return list
}

// remove ends all components, and removes what they left in the engine.
func (f *Farm) remove() {
	f.Kill(f.names("")...)
	_ = f.redis.Close()
	if err := f.containers.remove(); err != nil {
		f.t.Errorf("clean up: %v", err)
	}
	if f.t.Failed() {
		f.t.Logf("output of the farm:\n%s", f.logs())
	}
}

func (f *Farm) names(prefix string) []string {
	var names []string
	for name := range f.components {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Clock is the clock of a process that runs a program that `deploy skewed` has built.
type Clock struct {
	t    testing.TB
	file string
}

// NewClock makes a clock that is right.
func NewClock(t testing.TB) *Clock {
	t.Helper()
	c := &Clock{t: t, file: filepath.Join(t.TempDir(), "clock")}
	c.Shift(0)
	return c
}

// Env is the variable that gives this clock to a process.
func (c *Clock) Env() string { return "SANDFARM_TEST_CLOCK=" + c.file }

// Shift sets by how much the clock is ahead, in whole seconds; negative: behind.
func (c *Clock) Shift(ahead time.Duration) {
	c.t.Helper()
	file, err := os.OpenFile(c.file, os.O_CREATE|os.O_WRONLY, 0o600) // not truncated: a process has it in memory
	if err == nil {
		_, err = file.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(ahead/time.Second)), 0) //nolint:gosec // two's complement, as the reader expects
	}
	if err == nil {
		err = file.Close()
	}
	testbed.Must(c.t, err)
}
