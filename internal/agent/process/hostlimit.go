package process

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	// MaxSockets is how many sockets a sandbox may have, including connections that are not accepted yet. The kernel has no limit for them, and
	// charges a part of their memory to no cgroup: with the sandbox's settings some 10 KiB for each of TCP.
	MaxSockets = 8192
	// MaxTerminals is how many pseudo-terminals a sandbox may have. The kernel has some 3000 for all sandboxes of a host.
	MaxTerminals = 128
	// limitEvery is how often they are counted.
	limitEvery = time.Second

	// gVisorBytes and gVisorTaskBytes are what gVisor itself needs of a sandbox's memory, in all and for each process that the sandbox may
	// have: its own memory beside that of the programs, and what they take until they are ended. At most a quarter of the memory is kept.
	gVisorBytes     = 48 << 20
	gVisorTaskBytes = 192 << 10
	// gVisorHeap is the part of gVisorBytes that its own objects need.
	gVisorHeap = 16 << 20
	// fillRate is the bytes a second that programs may fill, at most: the memory is read again before they can reach the limit.
	fillRate = 4 << 30
	// memoryPause and memoryPauseMax are the shortest and the longest time between two readings.
	memoryPause, memoryPauseMax = 10 * time.Millisecond, time.Second
)

// HostLimit ends the programs of a sandbox that has too much of something of which the sandbox's kernel has no limit: Linux counts it for
// the host only, or, for memory in gVisor, ends the whole sandbox. A nil *HostLimit ended nothing.
type HostLimit struct {
	limit int
	count func() int
	kill  func()
	pause func(count int) time.Duration // until the next count; nil: limitEvery
	kills atomic.Int64
}

// NewMemoryLimit makes a limit of the memory of gVisor, which calls kill when it is exceeded: what the file meminfo shows of the programs,
// and what the file heap shows of the objects that gVisor keeps for them, such as data of sockets. It is all that meminfo shows, less what
// gVisor needs for itself and tasks processes.
func NewMemoryLimit(kill func(), meminfo, heap string, tasks int) *HostLimit {
	_, total := readMeminfo(meminfo)
	limit := int(total - min(total/4, gVisorBytes+int64(tasks)*gVisorTaskBytes))
	var objects, garbage int64 // what was left when the programs were ended counts no more: gVisor collects it later
	return &HostLimit{
		limit: limit,
		kill: func() {
			garbage = objects
			kill()
		},
		count: func() int {
			used, _ := readMeminfo(meminfo)
			text, _ := readShort(heap)
			objects = kibNumber(text, "HeapAlloc:")
			garbage = min(garbage, objects)
			return int(used + max(0, objects-garbage-gVisorHeap))
		},
		pause: func(used int) time.Duration {
			return min(max(time.Duration(limit-used)*time.Second/fillRate, memoryPause), memoryPauseMax)
		},
	}
}

// NewSocketLimit makes a limit of MaxSockets sockets that calls kill when it is exceeded. file is the kernel's count of those of this network
// namespace, /proc/net/sockstat; without it (gVisor) there is no limit. Its first line counts all of them. Those of UDP and TCP count less: a
// socket that has left its port keeps its memory.
func NewSocketLimit(kill func(), file string) *HostLimit {
	return &HostLimit{limit: MaxSockets, kill: kill, count: func() (sockets int) {
		text, _ := readShort(file)
		_, _ = fmt.Sscanf(text, "sockets: used %d", &sockets)
		return sockets
	}}
}

// NewTerminalLimit makes a limit of MaxTerminals pseudo-terminals that calls kill when it is exceeded. dir is where this sandbox has them:
// /dev/pts.
func NewTerminalLimit(kill func(), dir string) *HostLimit {
	return &HostLimit{limit: MaxTerminals, kill: kill, count: func() (terminals int) {
		entries, _ := os.ReadDir(dir) // without it there are none
		for _, entry := range entries {
			if _, err := strconv.Atoi(entry.Name()); err == nil { // not ptmx
				terminals++
			}
		}
		return terminals
	}}
}

// Run counts again and again until ctx ends.
func (l *HostLimit) Run(ctx context.Context) {
	pause := limitEvery
	if l.pause != nil {
		pause = memoryPause
	}
	for {
		select {
		case <-time.After(pause):
			pause = l.Check()
		case <-ctx.Done():
			return
		}
	}
}

// Check counts once, and kills when there are too many. It returns the time until the next count.
func (l *HostLimit) Check() time.Duration {
	count := l.count()
	if count > l.limit {
		l.kills.Add(1) // before the kill: what it ends asks for the reason
		l.kill()
	}
	if l.pause != nil {
		return l.pause(count)
	}
	return limitEvery
}

// Kills is how often the limit was exceeded.
func (l *HostLimit) Kills() int64 {
	if l == nil {
		return 0
	}
	return l.kills.Load()
}
