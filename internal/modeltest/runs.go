package modeltest

import (
	"flag"
	"math/rand/v2"
	"strconv"
	"testing"
)

// Runs makes the random runs of rapid as many and as long as it says, unless rapid's own flags are given. They are others each time, with -count
// too; the log says how to repeat them. The flags are those of the whole test binary: a test that calls this is not parallel.
func Runs(t *testing.T, checks, steps int) {
	t.Helper()
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, value := range map[string]string{
		"rapid.checks": strconv.Itoa(checks), "rapid.steps": strconv.Itoa(steps),
		"rapid.seed":       strconv.FormatUint(1+rand.Uint64N(1<<32), 10), //nolint:gosec // chance, not a secret
		"rapid.nofailfile": "true",
	} {
		f := flag.Lookup(name)
		if given[name] {
			continue
		}
		if err := f.Value.Set(value); err != nil { // not flag.Set: the flag is still not given, so the next run of -count draws another seed
			t.Fatal(err)
		}
	}
	t.Logf("to repeat these runs: -rapid.seed=%s -rapid.checks=%s -rapid.steps=%s", flag.Lookup("rapid.seed").Value, flag.Lookup("rapid.checks").Value, flag.Lookup("rapid.steps").Value)
}
