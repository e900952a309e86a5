//go:build faults

package faulttest_test

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/faulttest"
)

// rounds is how often each kind of fault happens: once, or 20 times in the whole suite.
func rounds() int {
	n, err := strconv.Atoi(os.Getenv("SANDFARM_TEST_ROUNDS"))
	if err != nil {
		return 1
	}
	return n
}

// seed is where chosen begins: SANDFARM_TEST_SEED, or another one for each run.
var seed = sync.OnceValue(func() uint64 {
	n, err := strconv.ParseUint(os.Getenv("SANDFARM_TEST_SEED"), 10, 64)
	if err != nil {
		n = 1 + rand.Uint64N(1<<32) //nolint:gosec // chance, not a secret
	}
	return n
})

// chosen takes n of the points at random, or all of them in the whole suite. The same seed chooses the same ones for the same test.
func chosen(t *testing.T, points []point, n int) []point {
	t.Helper()
	name := fnv.New64()
	_, _ = name.Write([]byte(t.Name()))
	chance := rand.New(rand.NewPCG(seed(), name.Sum64())) //nolint:gosec // chance, not a secret
	chance.Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
	if rounds() == 1 {
		points = points[:min(n, len(points))]
	}
	t.Logf("SANDFARM_TEST_SEED=%d chooses %v", seed(), points)
	return points
}

// short is the first of two lengths of a fault, and in the whole suite the second, which takes longer than a test should.
func short(sample, whole time.Duration) time.Duration {
	if rounds() > 1 {
		return whole
	}
	return sample
}

// moment waits up to d.
func moment(d time.Duration) { <-time.After(rand.N(d)) } //nolint:gosec // chance, not a secret

// work submits a mix of jobs to each sandbox, one behind the other, and one with a sandbox of its own.
func work(c *faulttest.Case, boxes []string) (jobs []*faulttest.Job) {
	for _, box := range boxes {
		jobs = append(jobs, c.Insist(box, faulttest.Run{Lines: 5 + rand.IntN(20), Files: 2}), c.Insist(box, faulttest.Run{Lines: 1, Files: 1}))
	}
	return append(jobs, c.Insist("", faulttest.Run{Alone: true, Lines: 10, Files: 1}))
}
