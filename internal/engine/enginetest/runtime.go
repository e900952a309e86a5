package enginetest

import (
	"os"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Runtime is the OCI runtime of sandboxes in tests: that of the setting engine.runtime, as for the farms that tests start (`make
// test-integration RUNTIME=runsc`). Empty: the engine's default.
func Runtime() string { return os.Getenv("SANDFARM_ENGINE_RUNTIME") }

// GVisor reports whether sandboxes in tests run under gVisor, where some things differ (docs/security.md, "Under gVisor").
func GVisor() bool { return farm.GVisor(Runtime()) }

// runtimeArgs registers that runtime in an engine. SANDFARM_TEST_RUNSC names the program.
func runtimeArgs() []string {
	if program := os.Getenv("SANDFARM_TEST_RUNSC"); GVisor() && program != "" {
		return []string{"--add-runtime", Runtime() + "=" + program}
	}
	return nil
}
