// Package testbed is what tests of several packages share: how they wait for what has no signal, the addresses of servers that they start, and the logs
// of those while they run.
package testbed

import (
	"testing"
	"time"
)

const (
	// patience is how long Until waits. It only detects a hang, so a busy machine must not reach it.
	patience = 2 * time.Minute
	// firstPause and lastPause are the shortest and the longest time between two looks.
	firstPause, lastPause = time.Millisecond, 50 * time.Millisecond
)

// Until waits until a condition holds, and fails the test if it does not within two minutes. what says in words what is waited for. Use it only for
// what gives no signal.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	pause := firstPause
	for end := time.Now().Add(patience); !holds(); pause = min(2*pause, lastPause) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", patience, what)
		}
		time.Sleep(pause) //nolint:forbidigo // there is no signal
	}
}
