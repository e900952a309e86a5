package farmd

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// slice is the time that the kernel lets a thread of the farm run before another one's turn. Linux 6.12 and newer let a thread with a short
// slice run as soon as it wakes up, before one with a longer slice, and it gets no more time by that. A job wakes up some ten threads one after
// the other; each would wait up to 4 ms for sandboxes that use all cores. Older kernels ignore it.
const slice uint64 = 100_000 // ns

// slicePasses bounds how often the threads are listed, to find those that were created meanwhile.
const slicePasses = 10

// shortenSlices gives each thread of this process, and by inheritance those that come later and its children, a short slice.
func shortenSlices() {
	for range slicePasses {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return
		}
		changed := false
		for _, thread := range threads {
			if id, err := strconv.Atoi(thread.Name()); err == nil && shortenSlice(id) {
				changed = true
			}
		}
		if !changed {
			return
		}
	}
}

// shortenSlice reports whether it changed a thread. Threads with another policy than the usual one are left alone, and a kernel that refuses is as
// one that ignores it.
func shortenSlice(thread int) bool {
	attr, err := unix.SchedGetAttr(thread, 0)
	if err != nil || attr.Policy != unix.SCHED_NORMAL || attr.Runtime == slice {
		return false
	}
	attr.Runtime = slice
	return unix.SchedSetAttr(thread, attr, 0) == nil
}
