//go:build integration

package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/engineproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/node"
)

// copies is a runtime whose sandboxes can read the programs of the agent's volume: the probe copies itself.
const copies = "runsc"

// bundle is a separate farm in the real engine, with an empty image and the probe as its agent.
type bundle struct {
	*engine.Engine
	cfg   engine.Config
	image string
	probe []byte
}

// programs is what goes into the agent's volume.
func (b *bundle) programs(context.Context) ([]farm.AgentProgram, error) {
	return []farm.AgentProgram{{Name: "agent", Data: b.probe}, {Name: "second", Data: []byte("#!/bin/sh")}}, nil
}

// probeBinary builds the probe once for all tests.
var probeBinary = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "sandfarm-probe-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "probe")
	build := exec.Command("go", "build", "-o", path, "./testdata/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return out, err
	}
	return os.ReadFile(path)
})

func setup(t testing.TB) *bundle { return setupOn(t, "") }

// proxied marks the tests and benchmarks that run through the proxy.
const proxied = "ThroughTheProxy/"

// throughProxy starts a proxy before the engine, which lets commands of these tests pass, and returns its address.
func throughProxy(t testing.TB, host, namespace string) string {
	t.Helper()
	behind, err := engine.New(engine.Config{Host: host, Namespace: namespace, Runtime: enginetest.Runtime()})
	testbed.Must(t, err)
	dir, err := os.MkdirTemp("", "sfp") // t.TempDir is too long for a socket
	testbed.Must(t, err)
	p := engineproxy.New(engineproxy.Config{
		Namespace: namespace, Checker: behind.NewChecker(engine.Rules{Runtimes: []string{"runsc"}}), Dial: behind.Connect, MaxBody: 4 << 20, Builds: strings.HasSuffix(t.Name(), "TestBuildAndImages"),
		Log: slog.New(slog.DiscardHandler), Exec: func(string, []string) bool { return true },
	})
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	path := filepath.Join(dir, "engine.sock")
	go func() {
		ended <- p.Serve(ctx, engineproxy.Socket{Path: path, Mode: 0o600, MaxConnections: 256}, func() { close(ready) })
	}()
	t.Cleanup(func() {
		cancel()
		err := errors.Join(<-ended, behind.Close(), os.RemoveAll(dir))
		testbed.Check(t, err == nil, "stop proxy: %v", err)
	})
	<-ready
	return "unix://" + path
}

// setupOn is setup on a given engine.
func setupOn(t testing.TB, host string) *bundle {
	t.Helper()
	probe, err := probeBinary()
	testbed.Require(t, err == nil, "build probe: %v\n%s", err, probe)
	cfg := engine.Config{Host: host, Namespace: "sandfarm-test-" + farm.NewID(""), Runtime: enginetest.Runtime()}
	if strings.Contains(t.Name(), proxied) {
		cfg.Host = throughProxy(t, host, cfg.Namespace)
	}
	e, err := engine.New(cfg)
	testbed.Must(t, err)
	b := &bundle{Engine: e, cfg: cfg, image: cfg.Namespace + "/empty:1", probe: probe}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		for _, err := range []error{e.RemoveAll(ctx, true), e.RemoveImage(ctx, b.image), e.Close()} {
			testbed.Check(t, err == nil, "clean up: %v", err)
		}
	})
	testbed.Must(t, e.Import(t.Context(), b.image, bytes.NewReader(make([]byte, 1024))))
	return b
}

// spec is a sandbox with the probe as PID 1.
func (b *bundle) spec(t testing.TB, command ...string) farm.ContainerSpec {
	t.Helper()
	volume, err := b.EnsureAgent(t.Context(), "v1", copies, b.programs, b.image)
	testbed.Must(t, err)
	return farm.ContainerSpec{
		SandboxID: farm.NewID(farm.SandboxPrefix), Tenant: "tenant-a", Node: "node_x", Deadline: time.Unix(2_000_000_000, 0),
		Image: b.image, Command: append([]string{"/sandfarm/agent"}, command...), Env: map[string]string{"COLOUR": "blue"}, Agent: volume,
		Labels:    map[string]string{"sandfarm.record": "kept"},
		Resources: farm.Resources{MemoryMB: 256, CPUs: 1, PIDs: 64, DiskMB: 64},
	}
}

// TestConformance checks that the package is an engine of workers.
func TestConformance(t *testing.T) {
	t.Parallel()
	enginetest.Conformance(t, subject)
}

// subject is a farm for the suite of all engines.
func subject(t testing.TB) *enginetest.Subject {
	t.Helper()
	b := setup(t)
	connect := func(t testing.TB, cfg engine.Config) node.Engine {
		t.Helper()
		e, err := engine.New(cfg)
		testbed.Must(t, err)
		t.Cleanup(func() { _ = e.Close() })
		return e
	}
	return &enginetest.Subject{
		Engine: b.Engine, Spec: b.spec,
		Again: func(t testing.TB) node.Engine {
			t.Helper()
			return connect(t, b.cfg)
		},
		Silent: func(t testing.TB) (down, hangs node.Engine) {
			t.Helper()
			path := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", path)
			testbed.Must(t, err)
			t.Cleanup(func() { _ = l.Close() })
			return connect(t, engine.Config{Host: "unix://" + path + "-none"}), connect(t, engine.Config{Host: "unix://" + path})
		},
	}
}

// start creates and starts a container.
func (b *bundle) start(t testing.TB, s farm.ContainerSpec) string {
	t.Helper()
	id, err := b.Create(t.Context(), s)
	testbed.Must(t, err)
	testbed.Must(t, b.Start(t.Context(), id))
	return id
}

// output runs the probe in a container and reads its stdout to the end.
func (b *bundle) output(t testing.TB, id string, args ...string) []byte {
	t.Helper()
	s, err := b.Dial(t.Context(), id, append([]string{"/sandfarm/agent"}, args...), "")
	testbed.Must(t, err)
	defer s.Close()
	out, err := io.ReadAll(s)
	testbed.Must(t, err)
	return out
}

// facts returns the facts that the probe reports.
type facts struct {
	Status, Init, Calls, Writable, Execs, Mounts map[string]string
	Bytes, Inodes                                map[string]uint64
	Interfaces, Env                              []string
	Limits                                       map[string][2]uint64
	Hostname, Cwd                                string
	Masked                                       map[string]int
	Agent                                        map[string]string
}

func (b *bundle) facts(t testing.TB, id string) facts {
	t.Helper()
	var f facts
	testbed.Must(t, json.Unmarshal(b.output(t, id, "facts"), &f))
	return f
}

func wantCode(t testing.TB, what string, err error, want farm.Code) {
	t.Helper()
	got := farm.CodeOf(err)
	testbed.Check(t, got == want, "%s: code %q (%v), want %q", what, got, err, want)
}

func has(list []string, part string) bool { return strings.Contains(strings.Join(list, "\n"), part) }
