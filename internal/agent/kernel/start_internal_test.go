package kernel

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/process"
)

func TestKernelThatIsNotStartedSaysWhatHelps(t *testing.T) {
	t.Parallel()
	limit := "The kernel could not be started: " + process.OutOfProcesses
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"no process": {fmt.Errorf("start kernel: %w", syscall.EAGAIN), limit},
		"no thread":  {errors.New("the Python kernel ended while it started: RuntimeError: can't start new thread"), limit},
		"other":      {errors.New("the Python kernel ended while it started"), "The kernel could not be started: the Python kernel ended while it started."},
	} {
		if got := notStarted(c.err); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
