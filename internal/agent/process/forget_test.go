package process_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestForgetKillsRunningExecution(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	id := agenttest.NewID()
	testbed.Must(t, a.Start(t.Context(), id, agenttest.Commands("echo $$; sleep 904")))
	frames, err := a.Frames(t.Context(), id, 1)
	testbed.Must(t, err)
	defer func() { _ = frames.Close() }()
	for range 2 {
		_, err = frames.Next()
		testbed.Must(t, err)
	}
	testbed.Must(t, a.Forget(t.Context(), id))
	testbed.Must(t, a.Forget(t.Context(), id))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for len(agenttest.Processes(t, id)) > 0 {
		select {
		case <-ctx.Done():
			t.Fatal("the command still runs")
		case <-time.After(10 * time.Millisecond):
		}
	}
	_, err = a.Frames(t.Context(), id, 1)
	testbed.Require(t, farm.CodeOf(err) == farm.CodeConflict, "frames of a forgotten execution: %v", err)
	_, outcome := lastFrame(t, a.Client, id, 1000)
	testbed.Check(t, outcome.Canceled && outcome.OutputGone, "outcome of a forgotten execution: %+v", outcome)
}

func TestStartIsIdempotent(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	id := agenttest.NewID()
	for range 3 {
		testbed.Must(t, a.Start(t.Context(), id, agenttest.Commands("echo x >>count")))
	}
	agenttest.Read(t, a.Client, id)
	ran := agenttest.Run(t, a.Client, agenttest.Commands("cat count"))
	testbed.Require(t, ran.Stdout == "x\n", "it ran more than once: %q", ran.Stdout)
	list, err := a.Executions(t.Context())
	testbed.Must(t, err)
	testbed.Require(t, len(list) == 1 && list[0].ID == id && list[0].Done && list[0].FirstSeq == 1, "executions = %+v", list)
}

// lastFrame reads the frame that is the answer to a number beyond the end.
func lastFrame(t *testing.T, c *client.Client, id string, from uint64) (uint64, agent.Outcome) {
	t.Helper()
	frames, err := c.Frames(t.Context(), id, from)
	testbed.Must(t, err)
	defer func() { _ = frames.Close() }()
	f, err := frames.Next()
	testbed.Must(t, err)
	var outcome agent.Outcome
	testbed.Must(t, json.Unmarshal(f.Payload, &outcome))
	_, err = frames.Next()
	testbed.Check(t, f.Type == agent.FrameFinal && errors.Is(err, io.EOF), "frame %d of type %d, then %v", f.Seq, f.Type, err)
	return f.Seq, outcome
}

// A job that the farm has ended comes back when Redis loses its newest writes. Its code must not run twice, and how it ended must be known,
// however often it is asked for.
func TestForgottenExecutionNeverRunsAgain(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	id, spec := agenttest.NewID(), agenttest.Commands("echo x >>count; exit 7")
	spec.MaxFiles, spec.MaxFileBytes = 10, 1000
	testbed.Must(t, a.Start(t.Context(), id, spec))
	whole := agenttest.Read(t, a.Client, id)
	last := whole.Frames[len(whole.Frames)-1].Seq
	for range 3 {
		if seq, outcome := lastFrame(t, a.Client, id, last+1); seq != last || outcome.ExitCode != 7 || outcome.OutputGone || len(outcome.Files) != 1 {
			t.Errorf("after the end: frame %d, %+v", seq, outcome)
		}
	}
	testbed.Must(t, a.ForgetAll(t.Context(), id, agenttest.NewID()))
	for from := range uint64(3) {
		testbed.Must(t, a.Start(t.Context(), id, spec))
		seq, outcome := lastFrame(t, a.Client, id, last+from)
		if seq != last || outcome.ExitCode != 7 || !outcome.OutputGone || len(outcome.Files) != 0 || outcome.Skipped != 1 || outcome.RunMS != whole.Outcome.RunMS {
			t.Errorf("after it was forgotten: frame %d, %+v", seq, outcome)
		}
		known, err := a.Execution(t.Context(), id)
		testbed.Must(t, err)
		testbed.Check(t, known != nil && known.Done && known.FirstSeq == last && known.LastSeq == last, "execution = %+v", known)
		testbed.Must(t, a.Stop(t.Context(), id, agent.StopCancel))
		testbed.Must(t, a.Ack(t.Context(), id, last))
		testbed.Must(t, a.Forget(t.Context(), id))
	}
	count, err := os.ReadFile(filepath.Join(a.Workspace, "count"))
	testbed.Check(t, string(count) == "x\n", "it ran %q, %v", count, err)
	known, err := a.Execution(t.Context(), agenttest.NewID())
	testbed.Check(t, known == nil && err == nil, "an unknown execution = %+v, %v", known, err)
}

// A worker that was held up may start an execution after another worker has ended the job.
func TestExecutionForgottenBeforeItsStartNeverStarts(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	id := agenttest.NewID()
	testbed.Must(t, a.Forget(t.Context(), id))
	testbed.Must(t, a.Start(t.Context(), id, agenttest.Commands("echo x >>count")))
	seq, outcome := lastFrame(t, a.Client, id, 1)
	testbed.Check(t, seq == 1 && outcome.Canceled, "frame %d, %+v", seq, outcome)
	ran := agenttest.Run(t, a.Client, agenttest.Commands("ls"))
	testbed.Check(t, ran.Stdout == "", "it ran: %q", ran.Stdout)
}
