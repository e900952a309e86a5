package worker

import (
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	if err := (Config{}).withDefaults().validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	err := Config{Slots: -1, EngineTimeout: -1, StopGrace: -1}.withDefaults().validate()
	for _, want := range []string{"worker.slots is -1", "worker.engine_timeout is -1ns", "worker.stop_grace is -1ns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if _, err := New(Config{Slots: 1 << 20}, Deps{}); err == nil {
		t.Error("New accepts a million slots")
	}
}

type fakeServer struct{ err error }

func (f fakeServer) Start() error { return f.err }
func (f fakeServer) Stop()        {}
func (f fakeServer) Wake()        {}

func TestStopBeforeStartAndTwice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, err := New(b.cfg, b.deps)
	workertest.Must(t, err)
	w.Stop()
	w.Stop()
}

// A failed start removes its registration and leaves no goroutine (TestMain checks).
func TestStartThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deps.Listen = func(queue.ServerConfig) (Server, error) {
		return fakeServer{err: workertest.ErrTest}, nil
	}
	w, err := New(b.cfg, b.deps)
	workertest.Must(t, err)
	if err := w.Start(t.Context()); err == nil { // the fake engine has no identity: the first step fails
		t.Fatal("it started")
	}
	w.Stop()
	if alive, err := b.Store.Alive(t.Context(), w.id); err != nil || alive {
		t.Fatalf("the worker is still registered: %v %v", alive, err)
	}
}
