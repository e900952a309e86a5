package e2b

import (
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestEndSaysWhy(t *testing.T) {
	t.Parallel()
	killed, failed, ok := 137, 2, 0
	for want, end := range map[string]farm.ProcessEnd{
		"limit of 64 MiB.": {ExitCode: &killed, OutOfMemory: true, Reason: "limit of 64 MiB."},
		"exit status 2":    {ExitCode: &failed},
		"":                 {ExitCode: &ok},
	} {
		if got := endOf(&end); got.GetError() != want || int(got.GetExitCode()) != *end.ExitCode {
			t.Errorf("%v, want %q", got, want)
		}
	}
}
