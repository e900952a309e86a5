package relay_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// echo is a server on a port of this machine, which is the agent's. It sends back what it gets, then a last word.
func echo(t *testing.T) int {
	t.Helper()
	return agenttest.Serve(t, func(conn io.ReadWriter) {
		_, _ = io.Copy(conn, conn)
		_, _ = io.WriteString(conn, "over")
	})
}

func (n *node) dial(port int) *relay.PortConn {
	n.t.Helper()
	c, err := n.path.Agent(n.box).DialPort(n.t.Context(), port)
	workertest.Must(n.t, err)
	n.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Bytes pass both ways through a worker, and each direction ends by itself.
func TestAPortOverTheLivePath(t *testing.T) {
	t.Parallel()
	n := setup(t)
	n.worker("wrk_1", nil)
	c := n.dial(echo(t))
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	go func() {
		_, _ = c.Write(sent)
		_ = c.CloseWrite()
	}()
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, append(bytes.Clone(sent), "over"...)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	testbed.Until(t, "its bytes are use", func() bool { return n.uses.Load() > 0 })
}

// A connection whose worker ends is broken, not ended, and the next one goes over another worker. So does a dial that finds its worker gone.
func TestAPortWhenTheWorkerEnds(t *testing.T) {
	t.Parallel()
	n := setup(t)
	n.worker("wrk_1", nil)
	n.worker("wrk_2", nil)
	port := echo(t)
	c := n.dial(port)
	n.serving().Stop()
	if _, err := io.ReadAll(c); err == nil {
		t.Error("the connection looks complete")
	}
	for range 3 {
		c = n.dial(port)
		_, err := io.WriteString(c, "again")
		workertest.Must(t, err)
		got := make([]byte, 5)
		if _, err := io.ReadFull(c, got); err != nil || string(got) != "again" {
			t.Errorf("%q, %v", got, err)
		}
	}
	n.serving().Stop()
	if _, err := n.path.Agent(n.box).DialPort(t.Context(), port); farm.CodeOf(err) != farm.CodeUnavailable {
		t.Errorf("no worker is left: %v", err)
	}
}

func TestADialThatIsCanceled(t *testing.T) {
	t.Parallel()
	n := setup(t)
	n.worker("wrk_1", nil)
	ctx, cancel := context.WithCancel(t.Context())
	port := echo(t)
	c, err := n.path.Agent(n.box).DialPort(ctx, port)
	workertest.Must(t, err)
	cancel() // it bounds the dial only
	_, err = io.WriteString(c, "x")
	workertest.Must(t, err)
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	workertest.Must(t, c.Close())
	if _, err := n.path.Agent(n.box).DialPort(ctx, port); !errors.Is(err, context.Canceled) && farm.CodeOf(err) != farm.CodeUnavailable {
		t.Errorf("%v", err)
	}
}

// A connection to a port is a stream: it counts, and its place is free when it is closed.
func TestPortsCountAsStreams(t *testing.T) {
	t.Parallel()
	n := setup(t)
	memory := budget.New(64 << 20)
	n.worker("wrk_1", func(c *relay.ServerConfig, d *relay.ServerDeps) { c.Tenant, d.Memory = 2, memory })
	port := echo(t)
	first := n.dial(port)
	n.dial(port)
	if _, err := n.path.Agent(n.box).DialPort(t.Context(), port); farm.CodeOf(err) != farm.CodeExhausted {
		t.Errorf("a third: %v", err)
	}
	if memory.Stats().Used == 0 {
		t.Error("open streams are charged nothing")
	}
	workertest.Must(t, first.Close())
	testbed.Until(t, "there is room again", func() bool {
		c, err := n.path.Agent(n.box).DialPort(t.Context(), port)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}
