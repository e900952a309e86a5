package server_test

import (
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/server"
)

// A worker extends the deadline that the agent was started with, then lets it pass.
func TestWorkerSetsDeadline(t *testing.T) {
	t.Parallel()
	ended := make(chan time.Time, 1)
	a := agenttest.Start(t, "/bin", func(c *server.Config) {
		c.EndsIn, c.End = time.Millisecond, func() { ended <- time.Now() }
	})
	if err := a.SetDeadline(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := a.SetDeadline(t.Context(), -time.Second); err != nil {
		t.Fatal(err)
	}
	select {
	case at := <-ended:
		if took := at.Sub(began); took < 6*time.Second {
			t.Errorf("it ended after %s", took)
		}
	case <-time.After(time.Minute):
		t.Error("the sandbox was not ended")
	}
}
