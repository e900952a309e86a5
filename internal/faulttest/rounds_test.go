//go:build faults

package faulttest_test

import (
	"math/rand/v2"
	"os"
	"strconv"
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
