package binary_test

import (
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/binary"
)

func TestAgentUnknownArchitectureSaysWhatToDo(t *testing.T) {
	t.Parallel()
	_, _, err := binary.Agent("pdp11")
	if err == nil || !strings.Contains(err.Error(), "make build") || !strings.Contains(err.Error(), "pdp11") {
		t.Fatalf("error = %v, want one that names the architecture and make build", err)
	}
}
