package api_test

import (
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/budget"
)

// Idle connections hold no memory, so that a client may send a message that needs its tenant's whole share.
func TestJupyterLargeMessagesAreRead(t *testing.T) {
	t.Parallel()
	var memory *budget.Budget
	b := setup(t, withMemory(&memory))
	f := b.frontend(b.kernel().ID, "?session_id=s")
	f.until(f.send("shell", "execute_request", map[string]any{"code": "", "odd": strings.Repeat("x", 8<<20)}))
}
