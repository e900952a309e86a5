package jupyter

import (
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Who uses a notebook creates no sandbox.
func TestOutOfMemoryNamesWhatNotebooksCanDo(t *testing.T) {
	t.Parallel()
	raised := wire.CodeError{Name: farm.ErrorOutOfMemory, Value: "Use less memory at once, or " + farm.MoreMemory + "."}
	job := &wire.Job{State: "completed", Result: &wire.Result{Execute: &wire.ExecuteResult{Error: &raised}}}
	want := "Use less memory at once, or start a kernel with more memory (sandfarm jupyter --memory, or KERNEL_MEMORY_MB in its environment)."
	if got := failureOf(job).Value; got != want {
		t.Errorf("%q", got)
	}
}

// Each WebSocket that ended left a timer, which held its session for ten minutes, also when the session was forgotten for others or its kernel had
// ended: a client that connected again and again filled the memory.
func TestNothingHoldsASessionThatIsForgotten(t *testing.T) {
	t.Parallel()
	ctx, hold := budget.New(16<<20).With(t.Context(), "acme", 0)
	t.Cleanup(hold.Release)
	server, ref := &Server{kernels: map[farm.Ref]*kernel{}}, farm.Ref{Tenant: "acme", ID: "sbx_1"}
	k := &kernel{server: server, ref: ref, sessions: map[string]*session{}}
	server.kernels[ref] = k
	add := func() *session {
		s := newSession(ctx, k, "one")
		k.sessions[s.id] = s
		return s
	}

	s := add()
	s.linger()
	timer := s.kept
	if s.linger(); timer == nil || s.kept != timer {
		t.Error("a session has no timer, or a second one")
	}
	k.dropIdle()
	if s.linger(); s.kept != nil || timer.Stop() {
		t.Error("a timer holds a session that is forgotten")
	}

	s = add()
	k.over = true
	if s.linger(); s.kept != nil || len(k.sessions) > 0 || len(server.kernels) > 0 {
		t.Error("a session of a kernel that has ended is kept")
	}
}
