package farmd

import "testing"

func TestThreads(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		now, cores int
		setting    string
		want       int
	}{
		"TwoCores":         {2, 2, "", 4},
		"ManyCores":        {64, 64, "", 66},
		"ByTheEnvironment": {2, 2, "2", 2},
		"LimitOfTheCgroup": {2, 8, "", 2},
	} {
		if got := threads(c.now, c.cores, c.setting); got != c.want {
			t.Errorf("%s: %d threads, want %d", name, got, c.want)
		}
	}
}
