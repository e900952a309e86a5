package verbs

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
)

func TestTheEndOfAProcessIsAnExitCode(t *testing.T) {
	t.Parallel()
	for want, data := range map[int]wire.ExitData{0: {}, 3: {ExitCode: 3}, ExitTimeout: {ExitCode: 143, TimedOut: true}} {
		var stderr strings.Builder
		s := session{app: &app{Streams: Streams{Err: &stderr}}}
		if code := exit(t.Context(), &cobra.Command{}, s.ended(data), &stderr); code != want || (stderr.Len() > 0) != data.TimedOut {
			t.Errorf("%+v: exit code %d, want %d; printed %q", data, code, want, stderr.String())
		}
	}
}
