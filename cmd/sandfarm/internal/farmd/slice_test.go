package farmd

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// kernelHasSlices reports whether this kernel lets a thread of the usual policy have a slice of its own: Linux 6.12 and newer.
func kernelHasSlices(t *testing.T) bool {
	t.Helper()
	own, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return own.Runtime != 0
}

// Every thread of the process and every process that it starts has the slice. An older kernel takes it and shows none.
func TestSlicesAreShort(t *testing.T) {
	t.Parallel()
	var want uint64
	if kernelHasSlices(t) {
		want = slice
	}
	shortenSlices()
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil || len(threads) < 2 {
		t.Fatalf("%d threads, %v", len(threads), err)
	}
	ids := []int{child.Process.Pid}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	for _, id := range ids {
		attr, err := unix.SchedGetAttr(id, 0)
		if errors.Is(err, unix.ESRCH) { // the thread has ended
			continue
		}
		if err != nil || attr.Runtime != want || attr.Policy != unix.SCHED_NORMAL {
			t.Errorf("thread %d: %+v, %v; want a slice of %d ns", id, attr, err, want)
		}
	}
}
