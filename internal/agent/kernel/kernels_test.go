//go:build integration

package kernel_test

import (
	"fmt"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestInterruptReachesOnlyRunningExecutions(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	id, next := agenttest.NewID(), agenttest.NewID()
	agenttest.Must(t, a.Start(t.Context(), id, agenttest.Code("print('begun')\nimport time; time.sleep(999)")))
	frames, err := a.Frames(t.Context(), id, 1)
	agenttest.Must(t, err)
	_, err = frames.Next()
	agenttest.Must(t, err)
	agenttest.Must(t, frames.Close())
	agenttest.Must(t, a.Start(t.Context(), next, agenttest.Code("print('next')")))
	agenttest.Must(t, a.Interrupt(t.Context(), "another"))
	agenttest.Must(t, a.Interrupt(t.Context(), ""))
	if ran := agenttest.Read(t, a.Client, id); ran.Outcome.Error == nil || ran.Outcome.Error.Name != "KeyboardInterrupt" || ran.Outcome.Restarted {
		t.Errorf("interrupted = %+v", ran.Outcome)
	}
	if ran := agenttest.Read(t, a.Client, next); ran.Stdout != "next\n" {
		t.Errorf("next = %+v", ran)
	}
}

func TestContextsAreBounded(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	for i := range 9 {
		spec := agenttest.Code("1")
		spec.Language, spec.Context = "bash", fmt.Sprint("c", i) // needs no kernel
		err := a.Start(t.Context(), agenttest.NewID(), spec)
		if i < 8 {
			agenttest.Must(t, err)
		} else if farm.CodeOf(err) != farm.CodeExhausted {
			t.Errorf("the ninth context: %v", err)
		}
	}
	if err := a.RestartKernel(t.Context(), "none"); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("restart of an unknown context: %v", err)
	}
}
