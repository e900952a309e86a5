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

func TestEscapes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		typed       []string
		want        string
		help, leave bool
	}{
		{[]string{"ls\r"}, "ls\r", false, false},
		{[]string{"~."}, "", false, true},
		{[]string{"~", "."}, "", false, true},
		{[]string{"ls\r~."}, "ls\r", false, true},
		{[]string{"ls\n", "~", ".more"}, "ls\n", false, true},
		{[]string{"cd ~.\r"}, "cd ~.\r", false, false},
		{[]string{"~~."}, "~.", false, false},
		{[]string{"~/bin/x\r"}, "~/bin/x\r", false, false},
		{[]string{"~\r~."}, "~\r", false, true},
		{[]string{"~?~."}, "", true, true},
		{[]string{"a~?"}, "a~?", false, false},
		{[]string{"~?x"}, "x", true, false},
	} {
		var e escapes
		var got string
		var help, leave bool
		for _, keys := range c.typed {
			out, asked, over := e.filter([]byte(keys))
			got, help, leave = got+string(out), help || asked, over
		}
		if got != c.want || help != c.help || leave != c.leave {
			t.Errorf("%q: %q, help %v, leave %v", c.typed, got, help, leave)
		}
	}
}

func TestPortsToForward(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]int{
		"8888": {8888, 8888}, "80:8080": {80, 8080}, "0:22": {0, 22}, "1": {1, 1}, "65535:65535": {65535, 65535},
		"0": {}, "65536": {}, "1:65536": {}, "65536:1": {}, "": {}, ":": {}, "a:1": {}, "1:": {}, "1:2:3": {}, "-1": {}, "0:0": {},
	} {
		local, port, err := forwardOf(text)
		if (err == nil) != (want[1] != 0) || err == nil && (local != want[0] || port != want[1]) {
			t.Errorf("%q: %d, %d, %v", text, local, port, err)
		}
	}
}
