package process_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// startPump starts a pump on a new pipe, and returns the write end and the log.
func startPump(t *testing.T) (*process.Pump, *os.File, *execution.Log) {
	t.Helper()
	var pipe [2]int
	testbed.Must(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	reaper := process.NewReaper(false)
	t.Cleanup(reaper.Close)
	log := execution.NewLog(64 << 20)
	w := os.NewFile(uintptr(pipe[1]), "pipe")
	t.Cleanup(func() { _ = w.Close() })
	return reaper.Pump(pipe[0], agent.FrameStdout, log, nil), w, log
}

// text is what the log has so far.
func text(t *testing.T, log *execution.Log) string {
	t.Helper()
	if _, last, _, _ := log.State(); last == 0 {
		return ""
	}
	frames, err := log.Next(t.Context(), 1)
	testbed.Must(t, err)
	var all bytes.Buffer
	for _, f := range frames {
		all.Write(f.Payload)
	}
	return all.String()
}

func TestPumpDrainsWhatWasWritten(t *testing.T) {
	t.Parallel()
	p, w, log := startPump(t)
	var want strings.Builder
	for i := range 200 { // the pump pauses after each of these, or is about to read it
		line := fmt.Sprintln("line", i)
		want.WriteString(line)
		_, err := w.WriteString(line)
		testbed.Must(t, err)
		p.Drain()
		_, _, size, _ := log.State()
		testbed.Require(t, size == want.Len(), "after line %d the log has %d bytes, not %d", i, size, want.Len())
	}
	testbed.Diff(t, "the log", want.String(), text(t, log))
}

func TestPumpDiscardsAfterFinish(t *testing.T) {
	t.Parallel()
	p, w, log := startPump(t)
	_, _ = w.WriteString("before")
	p.Finish()
	for range 20 { // more than the pipe holds: the pump must go on reading
		_, err := w.Write(make([]byte, 64<<10))
		testbed.Must(t, err)
	}
	p.Finish()
	testbed.Diff(t, "the log", "before", text(t, log))
}

func TestPumpDrainsAnEndedPipe(t *testing.T) {
	t.Parallel()
	p, w, log := startPump(t)
	_, _ = w.WriteString("last words")
	_ = w.Close()
	p.Drain()
	p.Finish()
	testbed.Diff(t, "the log", "last words", text(t, log))
}

func TestPumpKeepsTheOrderOfLargeOutput(t *testing.T) {
	t.Parallel()
	p, w, log := startPump(t)
	done := make(chan error, 1)
	var want bytes.Buffer
	for i := range 100_000 {
		fmt.Fprintln(&want, i)
	}
	go func() {
		_, err := w.Write(want.Bytes())
		done <- err
	}()
	for writing := true; writing; {
		select {
		case err := <-done:
			testbed.Must(t, err)
			writing = false
		default:
		}
		p.Drain()
	}
	if got := text(t, log); got != want.String() {
		t.Errorf("the log has %d bytes, not the %d that were written in order", len(got), want.Len())
	}
}
