package verbs

import "testing"

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
