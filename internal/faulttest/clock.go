package faulttest

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Clock is the clock of a process that runs a program that `deploy skewed` has built.
type Clock struct {
	t    testing.TB
	file string
}

// NewClock makes a clock that is right.
func NewClock(t testing.TB) *Clock {
	t.Helper()
	c := &Clock{t: t, file: filepath.Join(t.TempDir(), "clock")}
	c.Shift(0)
	return c
}

// Env is the variable that gives this clock to a process.
func (c *Clock) Env() string { return "SANDFARM_TEST_CLOCK=" + c.file }

// Shift sets by how much the clock is ahead, in whole seconds; negative: behind.
func (c *Clock) Shift(ahead time.Duration) {
	c.t.Helper()
	file, err := os.OpenFile(c.file, os.O_CREATE|os.O_WRONLY, 0o600) // not truncated: a process has it in memory
	if err == nil {
		_, err = file.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(ahead/time.Second)), 0) //nolint:gosec // two's complement, as the reader expects
	}
	if err == nil {
		err = file.Close()
	}
	if err != nil {
		c.t.Fatalf("set the clock: %v", err)
	}
}
