//go:build integration

package engine_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// runsc registers gVisor in an engine of a test.
func runsc(t *testing.T) []string {
	t.Helper()
	program := os.Getenv("SANDFARM_TEST_RUNSC")
	testbed.Require(t, program != "", "SANDFARM_TEST_RUNSC must name the program runsc")
	return []string{"--add-runtime", "runsc=" + program}
}

// A container under gVisor goes on after a checkpoint where it was, as often as one likes, also after a restart of the engine. The checkpoints
// follow each other so fast that the engine still has the one before.
func TestCheckpointKeepsMemory(t *testing.T) {
	t.Parallel()
	d := enginetest.New(t, enginetest.Options{Args: append(runsc(t), "--experimental")})
	b := setupOn(t, d.Host)
	testbed.Must(t, b.CheckCheckpoints(t.Context(), "runsc"))
	wantCode(t, "checkpoints of runc", b.CheckCheckpoints(t.Context(), "runc"), farm.CodeConflict)
	s := b.spec(t, "remember")
	s.Runtime = "runsc"
	id := b.start(t, s)
	before, err := b.Inspect(t.Context(), id)
	testbed.Must(t, err)
	recall := func(want string) {
		t.Helper()
		testbed.Until(t, "the probe answers", func() bool { return len(b.output(t, id, "facts")) > 0 })
		got := string(b.output(t, id, "recall"))
		testbed.Require(t, got == want, "the program answers %q, want %q", got, want)
	}
	wantCode(t, "resume without a checkpoint", b.Resume(t.Context(), id), farm.CodeConflict)
	recall("1")
	for _, want := range []string{"2", "3", "4", "5"} {
		testbed.Must(t, b.Checkpoint(t.Context(), id))
		c, err := b.Inspect(t.Context(), id)
		testbed.Require(t, err == nil && !c.Running, "after the checkpoint: %+v, %v", c, err)
		wantCode(t, "checkpoint of one that does not run", b.Checkpoint(t.Context(), id), farm.CodeConflict)
		if want == "5" {
			d.Kill()
			d.Start()
		}
		has, err := b.HasCheckpoint(t.Context(), id)
		testbed.Require(t, err == nil && has, "HasCheckpoint: %v, %v", has, err)
		for range 2 { // the second time it runs
			testbed.Must(t, b.Resume(t.Context(), id))
		}
		recall(want)
		left, err := filepath.Glob(filepath.Join(d.Tmp, "*checkpoint*"))
		testbed.Check(t, err == nil && len(left) == 0, "the resume leaves %v on the host, %v", left, err)
	}
	after, err := b.Inspect(t.Context(), id)
	if err != nil || after.Resources != before.Resources || after.Labels["sandfarm.sandbox"] != before.Labels["sandfarm.sandbox"] {
		t.Errorf("after the resume: %+v, %v; want %+v", after, err, before)
	}
	for range 2 {
		testbed.Must(t, b.RemoveCheckpoint(t.Context(), id))
	}
	has, err := b.HasCheckpoint(t.Context(), id)
	testbed.Check(t, err == nil && !has, "HasCheckpoint after the removal: %v, %v", has, err)
	testbed.Must(t, b.Checkpoint(t.Context(), id))
	testbed.Must(t, b.Remove(t.Context(), id))
	wantCode(t, "checkpoint of one that is gone", b.Checkpoint(t.Context(), id), farm.CodeNotFound)
	wantCode(t, "resume of one that is gone", b.Resume(t.Context(), id), farm.CodeNotFound)
}

// Without the program that removes what a resume leaves on the host no sandbox hibernates.
func TestCheckpointsOfTheBareRunsc(t *testing.T) {
	t.Parallel()
	program := filepath.Join(filepath.Dir(strings.TrimPrefix(runsc(t)[1], "runsc=")), "runsc")
	b := setupOn(t, enginetest.New(t, enginetest.Options{Args: []string{"--experimental", "--add-runtime", "runsc=" + program}}).Host)
	wantCode(t, "checkpoints", b.CheckCheckpoints(t.Context(), "runsc"), farm.CodeConflict)
}

// What the engine cannot do has a code, and the container runs on.
func TestCheckpointThatTheEngineRefuses(t *testing.T) {
	t.Parallel()
	for what, args := range map[string][]string{"not experimental": nil, "runc": {"--experimental"}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setupOn(t, enginetest.New(t, enginetest.Options{Args: append(runsc(t), args...)}).Host)
			s := b.spec(t, "wait")
			if args != nil {
				s.Runtime = "runc"
			}
			wantCode(t, "checkpoints", b.CheckCheckpoints(t.Context(), s.Runtime), farm.CodeConflict)
			id := b.start(t, s)
			wantCode(t, "checkpoint", b.Checkpoint(t.Context(), id), farm.CodeConflict)
			wantCode(t, "resume", b.Resume(t.Context(), id), farm.CodeConflict)
			testbed.Must(t, b.RemoveCheckpoint(t.Context(), id))
			c, err := b.Inspect(t.Context(), id)
			testbed.Check(t, err == nil && c.Running, "afterwards: %+v, %v", c, err)
		})
	}
}
