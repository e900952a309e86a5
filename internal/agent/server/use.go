package server

import (
	"net/http"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// useSpan is the shortest time over which use of the CPU is averaged. A request before that returns the previous average.
const useSpan = time.Second

// meter turns the CPU time of the sandbox into cores in use.
type meter struct {
	mu    sync.Mutex
	at    time.Time // of the last reading; at first, of the start
	cpu   time.Duration
	cores float64
}

// read is the use on average since the last reading that is at least useSpan old, or since the start.
func (m *meter) read(now time.Time, cpu time.Duration) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if span := now.Sub(m.at); span >= useSpan {
		m.cores = max(0, float64(cpu-m.cpu)/float64(span))
		m.at, m.cpu = now, cpu
	}
	return m.cores
}

func (s *Server) getUse(http.ResponseWriter, *http.Request) (any, error) {
	var out farm.SandboxUse
	out.Cores = s.use.read(time.Now(), process.CPUTime())
	out.MemoryBytes, _ = process.Memory()
	out.CacheBytes = min(max(0, out.MemoryBytes-process.UnreclaimableMemory()), out.MemoryBytes)
	var disk unix.Statfs_t
	if unix.Statfs(s.cfg.Workspace, &disk) == nil {
		out.DiskBytes = int64(disk.Blocks-disk.Bfree) * disk.Bsize //nolint:gosec // bytes of a disk
	}
	return out, nil
}
