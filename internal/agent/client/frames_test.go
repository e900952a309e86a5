package client_test

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// stdout reads frames to the end and returns the output in them.
func stdout(t *testing.T, frames *client.Frames) string {
	t.Helper()
	defer func() { _ = frames.Close() }()
	var text strings.Builder
	for {
		f, err := frames.Next()
		if errors.Is(err, io.EOF) {
			return text.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		if f.Type == agent.FrameStdout {
			text.Write(f.Payload)
		}
	}
}

func TestRunStartsOnceAndReadsFromAnyFrame(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	spec := agent.Spec{Kind: farm.KindCommand, Commands: []string{"echo x >>count; cat count"}, Timeout: time.Minute}
	id := agenttest.NewID()
	for _, from := range []uint64{0, 1, 2} {
		frames, err := a.Run(t.Context(), id, spec, from)
		if err != nil {
			t.Fatal(err)
		}
		if got := stdout(t, frames); got != "x\n" {
			t.Errorf("from %d: %q", from, got)
		}
		spec.Code = strings.Repeat("a long request of an execution that has started ", 1<<16) // 3 MB, more than a stream takes without a reader
	}
	if err := a.Ack(t.Context(), id, 2); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Run(t.Context(), id, spec, 1); farm.CodeOf(err) != farm.CodeConflict {
		t.Errorf("frames that were acknowledged: %v", err)
	}
	if _, err := a.Run(t.Context(), agenttest.NewID(), agent.Spec{Kind: "dance"}, 1); farm.CodeOf(err) != farm.CodeInvalid {
		t.Errorf("a spec that cannot be executed: %v", err)
	}
}

func TestRunDoesNotWaitForOutput(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	id := agenttest.NewID()
	frames, err := a.Run(t.Context(), id, agent.Spec{Kind: farm.KindCommand, Commands: []string{"sleep 1000"}, Background: true}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Forget(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	stdout(t, frames)
}

func TestRunOfAnOlderAgent(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var calls []string
	cl := against(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		calls = append(calls, r.Method+" "+r.URL.Path)
		mu.Unlock()
		if r.Method == http.MethodPut {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, "{}\n")
			return
		}
		if r.URL.Query().Get("from") != "3" {
			t.Errorf("query %q", r.URL.RawQuery)
		}
		_, _ = w.Write(agent.AppendFrame(agent.AppendFrame(nil, agent.Frame{Seq: 3, Type: agent.FrameStdout, Payload: []byte("hello")}), agent.Frame{Seq: 4, Type: agent.FrameFinal, Payload: []byte("{}")}))
	})
	frames, err := cl.Run(t.Context(), "job", agent.Spec{Kind: farm.KindCommand}, 3)
	if err != nil {
		t.Fatal(err)
	}
	if got := stdout(t, frames); got != "hello" {
		t.Errorf("output %q", got)
	}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff([]string{"PUT /v1/executions/job", "GET /v1/executions/job/frames"}, slices.Clone(calls)); diff != "" {
		t.Error(diff)
	}
}
