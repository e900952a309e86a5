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
	// socketsEvery is how often they are counted.
	socketsEvery = time.Second
)

// SocketLimit ends the programs of a sandbox that has more than MaxSockets TCP sockets. A nil *SocketLimit ended nothing.
type SocketLimit struct {
	files []string // the kernel's counts of sockets of this network namespace
	kill  func()
	kills atomic.Int64
}

// NewSocketLimit makes a limit that calls kill when it is exceeded. files are those of the kernel, such as /proc/net/sockstat and
// /proc/net/sockstat6.
func NewSocketLimit(kill func(), files ...string) *SocketLimit {
	return &SocketLimit{files: files, kill: kill}
}

// Run counts the sockets each second until ctx ends.
func (l *SocketLimit) Run(ctx context.Context) {
	tick := time.NewTicker(socketsEvery)
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

// Check counts the sockets once, and kills when there are too many.
func (l *SocketLimit) Check() {
	sockets := 0
	for _, file := range l.files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // such as a kernel without IPv6
		}
		sockets += tcpInUse(string(text))
	}
	if sockets > MaxSockets {
		l.kills.Add(1) // before the kill: what it ends asks for the reason
		l.kill()
	}
}

// Kills is how often the limit was exceeded.
func (l *SocketLimit) Kills() int64 {
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
