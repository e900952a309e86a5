package process

import (
	"fmt"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	p, ok := parseStat(7, "7 (a) Z (b) S 1 7 6 0 -1")
	testbed.Require(t, ok && p == (procInfo{pid: 7, parent: 1, group: 7, session: 6, name: "a) Z (b"}), "p = %+v, %v", p, ok)
	p, ok = parseStat(7, "7 (sh) Z 1 7 6 0 -1 4194304 120 0 0 0 3 4 0 0 20 0 1 0 5000 2506752 231 18446744073709551615")
	if !ok || p != (procInfo{pid: 7, parent: 1, group: 7, session: 6, zombie: true, name: "sh", started: 5000, cpu: 7, pages: 231}) {
		t.Fatalf("p = %+v, %v", p, ok)
	}
	for _, bad := range []string{"", "7 (a) S", "7 (a) S x y z"} {
		_, ok := parseStat(7, bad)
		testbed.Check(t, !ok, "%q is accepted", bad)
	}
}

func TestOOMKills(t *testing.T) {
	t.Parallel()
	n := statNumber("oom 3\noom_kill_disable 1\noom_kill 12\n", "oom_kill")
	testbed.Require(t, n == 12, "n = %d", n)
	n = statNumber("low 0\n", "oom_kill")
	testbed.Require(t, n == 0, "n = %d", n)
}

// The writer that was not used for the longest time is forgotten, beyond knownWriters.
func TestWritersAreBounded(t *testing.T) {
	t.Parallel()
	for others, known := range map[int]bool{knownWriters - 2: true, knownWriters - 1: true, knownWriters: false} {
		var w writers
		first := w.get("first")
		for i := range others {
			w.get(fmt.Sprint(i))
		}
		testbed.Diff(t, fmt.Sprintf("after %d others it is known", others), known, w.get("first") == first)
	}
}

// A writer that goes on is read ever more seldom, down to one read in maxPause; one that may be asked is read soon.
func TestPausesGrowWhileAWriterGoesOn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pause, longest       time.Duration
		paused, waited, full bool
		want                 time.Duration
	}{
		{minPause, maxPause, true, false, false, 2 * minPause},
		{maxPause / 2, maxPause, true, false, false, maxPause},
		{maxPause, maxPause, true, false, false, maxPause},
		{minPause, minPause, true, false, false, minPause},
		{2 * minPause, maxPause, false, false, false, 2 * minPause},
		{maxPause, maxPause, true, true, false, maxPause / 2},
		{minPause, maxPause, true, true, false, minPause},
		{maxPause, maxPause, true, false, true, minPause},
	} {
		p := Pump{longest: c.longest}
		testbed.Diff(t, fmt.Sprintf("the pause after %+v", c), c.want, p.next(c.pause, c.paused, c.waited, c.full))
	}
	r := NewReaper(false)
	t.Cleanup(r.Close)
	for input, want := range map[bool]time.Duration{false: maxPause, true: minPause} {
		p, err := r.StartLogged(&execution.Execution{Log: execution.NewLog(64 << 10)}, []string{"/bin/true"}, nil, "/", Streams{Input: input})
		testbed.Must(t, err)
		testbed.Diff(t, fmt.Sprintf("longest pauses with input %v", input), [2]time.Duration{want, want}, [2]time.Duration{p.out.longest, p.err.longest})
	}
}
