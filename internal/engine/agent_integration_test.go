//go:build integration

package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// The agent's volume is filled once, also for callers in several processes, and filled again after an interrupted fill.
func TestEnsureAgent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			e, err := engine.New(b.cfg)
			if err != nil {
				t.Error(err)
				return
			}
			defer e.Close()
			volume, err := e.EnsureAgent(t.Context(), "v1", copies, b.programs, b.image)
			testbed.Check(t, err == nil && volume == b.cfg.Namespace+"-agent-v1", "volume %q, error %v", volume, err)
		})
	}
	group.Wait()
	id := b.start(t, b.spec(t, "wait"))
	got := string(b.output(t, id, "forks"))
	testbed.Check(t, got != "", "the agent of the volume does not run")
	never := func(context.Context) ([]farm.AgentProgram, error) { return nil, errors.New("asked for what is there") }
	if _, err := b.EnsureAgent(t.Context(), "v1", copies, never, b.image); err != nil {
		t.Error(err)
	}
	if _, err := b.EnsureAgent(t.Context(), "v3", copies, never, b.image); err == nil {
		t.Error("a volume was filled with nothing")
	}
	testbed.Must(t, b.Remove(t.Context(), id))
	testbed.Must(t, b.RemoveAll(t.Context(), false)) // the note of the old fill must not count for a new volume
	b.facts(t, b.start(t, b.spec(t, "wait")))
	_, err := b.EnsureAgent(t.Context(), "v2", copies, b.programs, b.cfg.Namespace+"/none:1")
	wantCode(t, "fill without image", err, farm.CodeNotFound)
}

// Sandboxes of one kernel share the agent's volume. What they could open, they could lock and watch.
func TestAgentsThatCanOnlyBeExecuted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for runtime, want := range map[string]string{"runc": "EACCES", copies: ""} {
		volume, err := b.EnsureAgent(t.Context(), "v1", runtime, b.programs, b.image)
		testbed.Must(t, err)
		s := b.spec(t, "wait")
		s.Agent = volume
		if runtime == "runc" && enginetest.GVisor() {
			id, err := b.Create(t.Context(), s)
			if err == nil {
				err = b.Start(t.Context(), id)
			}
			testbed.Check(t, err != nil, "gVisor executed what its user may not read: one volume is enough, remove ReadExecute")
			continue
		}
		opened := map[string]string{
			"execute": "", "open /sandfarm": want, "open /sandfarm/agent": want, "watch /sandfarm": want, "watch /sandfarm/agent": want,
		}
		testbed.Diff(t, fmt.Sprintf("for %s", runtime), opened, b.facts(t, b.start(t, s)).Agent)
	}
}

func TestDialLocalReachesTheContainersOwnSocket(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, two := b.start(t, b.spec(t, "listen")), b.start(t, b.spec(t, "wait"))
	conn, err := b.DialLocal(t.Context(), one, "@probe")
	if enginetest.GVisor() {
		testbed.Check(t, errors.Is(err, engine.ErrNotLocal), "a socket of gVisor, which no process of the host reaches: %v", err)
		return
	}
	testbed.Must(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("hello"))
	testbed.Must(t, err)
	got := make([]byte, len("0\nhello"))
	_, err = io.ReadFull(conn, got)
	testbed.Check(t, err == nil && string(got) == "0\nhello", "read %q, %v", got, err)
	_, err = b.DialLocal(t.Context(), two, "@probe")
	testbed.Check(t, errors.Is(err, engine.ErrNotLocal), "the socket of one container in the namespace of another: %v", err)
	_, err = b.DialLocal(t.Context(), one, "/run/sandfarm/agent.sock")
	testbed.Check(t, errors.Is(err, engine.ErrNotLocal), "a path of the container's file system: %v", err)
	testbed.Must(t, b.Remove(t.Context(), two))
	_, err = b.DialLocal(t.Context(), two, "@probe")
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "a container that is gone: %v", err)
}

// The port of one container is not that of another one, nor of this machine, and a stream that is closed reaches none.
func TestAStreamHasThePortsOfItsContainer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, two := b.start(t, b.spec(t, "serve")), b.start(t, b.spec(t, "listen"))
	with, err := b.DialLocal(t.Context(), one, "@probe")
	if enginetest.GVisor() {
		testbed.Check(t, errors.Is(err, engine.ErrNotLocal), "a namespace of gVisor: %v", err)
		return
	}
	testbed.Must(t, err)
	without, err := b.DialLocal(t.Context(), two, "@probe")
	testbed.Must(t, err)
	defer without.Close()
	var conn *net.TCPConn
	for end := time.Now().Add(time.Minute); conn == nil; { // until it listens
		if conn, err = with.DialTCP(t.Context(), "127.0.0.1:7000"); err != nil && (!errors.Is(err, syscall.ECONNREFUSED) || time.Now().After(end)) {
			t.Fatal(err)
		}
	}
	defer conn.Close()
	got, err := io.ReadAll(conn)
	testbed.Check(t, err == nil && string(got) == "inside", "read %q, %v", got, err)
	_, err = without.DialTCP(t.Context(), "127.0.0.1:7000")
	testbed.Check(t, errors.Is(err, syscall.ECONNREFUSED), "the port of one container in the namespace of another: %v", err)
	testbed.Must(t, with.Close())
	_, err = with.DialTCP(t.Context(), "127.0.0.1:7000")
	testbed.Check(t, err != nil && !errors.Is(err, syscall.ECONNREFUSED), "a stream that is closed: %v", err)
}

func TestDialTellsWhyTheCommandEnded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.start(t, b.spec(t, "wait"))
	s, err := b.Dial(t.Context(), id, []string{"/sandfarm/agent", "fail"}, "")
	testbed.Must(t, err)
	defer s.Close()
	_, err = io.ReadAll(s)
	testbed.Check(t, err != nil && strings.Contains(err.Error(), "no such luck"), "error %v lacks stderr", err)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = b.Dial(gone, id, []string{"/sandfarm/agent", "echo"}, "")
	testbed.Check(t, errors.Is(err, context.Canceled), "dial of a caller that is gone: %v", err)
}
