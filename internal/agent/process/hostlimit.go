package process

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// MaxSockets is how many TCP sockets a sandbox may have, with those of connections that nobody has accepted. The kernel charges what
	// these keep to nobody and has no limit for them: with the sandbox's settings some 10 KiB for each.
	MaxSockets = 8192
	// MaxTerminals is how many pseudo-terminals a sandbox may have. The kernel has some 3000 for all sandboxes of a host.
	MaxTerminals = 128
	// limitEvery is how often they are counted.
	limitEvery = time.Second
)

// HostLimit ends the programs of a sandbox that has too many of something that Linux counts for the host only. A nil *HostLimit ended
// nothing.
type HostLimit struct {
	most  int
	count func() int
	kill  func()
	kills atomic.Int64
}

// NewSocketLimit makes a limit of MaxSockets TCP sockets that calls kill when it is exceeded. files are the kernel's counts of sockets of
// this network namespace, such as /proc/net/sockstat and /proc/net/sockstat6.
func NewSocketLimit(kill func(), files ...string) *HostLimit {
	return &HostLimit{most: MaxSockets, kill: kill, count: func() (sockets int) {
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				continue // such as a kernel without IPv6
			}
			sockets += tcpInUse(string(text))
		}
		return sockets
	}}
}

// NewTerminalLimit makes a limit of MaxTerminals pseudo-terminals that calls kill when it is exceeded. dir is where this sandbox has them:
// /dev/pts.
func NewTerminalLimit(kill func(), dir string) *HostLimit {
	return &HostLimit{most: MaxTerminals, kill: kill, count: func() (terminals int) {
		entries, _ := os.ReadDir(dir) // without it there are none
		for _, entry := range entries {
			if _, err := strconv.Atoi(entry.Name()); err == nil { // not ptmx
				terminals++
			}
		}
		return terminals
	}}
}

// Run counts each second until ctx ends.
func (l *HostLimit) Run(ctx context.Context) {
	tick := time.NewTicker(limitEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.Check()
		case <-ctx.Done():
			return
		}
	}
}

// Check counts once, and kills when there are too many.
func (l *HostLimit) Check() {
	if l.count() > l.most {
		l.kills.Add(1) // before the kill: what it ends asks for the reason
		l.kill()
	}
}

// Kills is how often the limit was exceeded.
func (l *HostLimit) Kills() int64 {
	if l == nil {
		return 0
	}
	return l.kills.Load()
}

// tcpInUse reads the number of TCP sockets from a text such as "TCP: inuse 6 orphan 0 tw 0 alloc 7 mem 1".
func tcpInUse(text string) int {
	for row := range strings.Lines(text) {
		fields := strings.Fields(row)
		if len(fields) >= 3 && (fields[0] == "TCP:" || fields[0] == "TCP6:") && fields[1] == "inuse" {
			n, _ := strconv.Atoi(fields[2])
			return n
		}
	}
	return 0
}
