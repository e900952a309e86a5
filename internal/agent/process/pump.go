package process

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
)

// pipeBytes is the size of the pipes of an execution, larger than the default for fewer switches between writer and agent. The
// kernel may refuse it.
const pipeBytes = 256 << 10

const (
	// smallRead is a read size below which more small writes are likely to follow.
	smallRead = 4 << 10
	// smallPause lets them accumulate: a writer is several times faster while its reader is not waiting.
	smallPause = time.Millisecond
)

// Pump copies one pipe into a log. After Finish it reads the pipe to its end and discards the data, so that background processes
// never get SIGPIPE and their output never appears in a later log.
type Pump struct {
	file    *os.File
	pipe    syscall.RawConn
	kind    agent.FrameType
	log     *execution.Log
	buffers *sync.Pool
	tee     func([]byte) // also gets the logged data
	prompt  bool         // it reads without pauses: somebody waits for the echo of a key

	mu       sync.Mutex // held from a read to its place in the log
	finished bool
	done     chan struct{} // closed by Finish; ends a pause
	ended    chan struct{} // closed when everything is read

	reading atomic.Bool  // what was read is not in its place yet
	reads   atomic.Int64 // how often something was read
}

// newBufferPool returns a pool of read buffers.
func newBufferPool() *sync.Pool {
	return &sync.Pool{New: func() any { b := make([]byte, execution.MaxOutputFrame); return &b }}
}

// Pump copies a pipe into a log as frames of a kind. It takes over fd, the read end. tee, when not nil, gets the same data.
func (r *Reaper) Pump(fd int, kind agent.FrameType, log *execution.Log, tee func([]byte)) *Pump {
	return r.pump(fd, kind, log, tee, false)
}

func (r *Reaper) pump(fd int, kind agent.FrameType, log *execution.Log, tee func([]byte), prompt bool) *Pump {
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeBytes) //nolint:gosec // a descriptor is small
	_ = unix.SetNonblock(fd, true)
	p := &Pump{
		file: os.NewFile(uintptr(fd), "pipe"), kind: kind, log: log, buffers: r.buffers, tee: tee, prompt: prompt, done: make(chan struct{}), ended: make(chan struct{}), //nolint:gosec // a descriptor is small
	}
	var err error
	if p.pipe, err = p.file.SyscallConn(); err != nil { // never for an open file
		_ = p.file.Close()
		close(p.ended)
		return p
	}
	go p.run()
	return p
}

// Drain returns once the current content of the pipe is in the log. The caller reads it itself, since the pump may be pausing.
func (p *Pump) Drain() { p.drain(false) }

// Finish is Drain, and discards later output.
func (p *Pump) Finish() { p.drain(true) }

// settle waits until a terminal is read to its end, which the kernel passes on in pieces: to the end that it tells, or, if a process in the
// background has the terminal still, until nothing has come for a while.
func (p *Pump) settle() {
	tick := time.NewTicker(settlePause)
	defer tick.Stop()
	for before := int64(-1); ; {
		select {
		case <-p.ended:
			return
		case <-tick.C:
		}
		reads := p.reads.Load()
		if reads == before && !p.reading.Load() {
			return
		}
		before = reads
	}
}

// settlePause is how long nothing comes from a terminal whose program has ended.
const settlePause = 200 * time.Millisecond

func (p *Pump) drain(finish bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pipe != nil {
		_ = p.pipe.Control(func(fd uintptr) { p.take(int(fd)) }) //nolint:gosec // a descriptor is small; an error means that the pipe has ended
	}
	if finish && !p.finished {
		p.finished = true
		close(p.done)
	}
}

// take reads the current content of the pipe. The caller holds mu.
func (p *Pump) take(fd int) {
	left, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil || left == 0 {
		return
	}
	buf := p.buffers.Get().(*[]byte) //nolint:errcheck // the pool holds nothing else
	defer p.buffers.Put(buf)
	for left > 0 {
		n, err := p.read(fd, (*buf)[:min(left, len(*buf))])
		if err != nil || n == 0 {
			return
		}
		left -= n
	}
}

// read reads once, and logs what it has read. The caller holds mu.
func (p *Pump) read(fd int, buf []byte) (n int, err error) {
	p.reading.Store(true)
	defer p.reading.Store(false)
	for {
		n, err = unix.Read(fd, buf)
		if err != unix.EINTR { //nolint:errorlint // an error number of the kernel
			break
		}
	}
	if n > 0 {
		p.reads.Add(1)
	}
	if n > 0 && !p.finished {
		if p.tee != nil {
			p.tee(buf[:n])
		}
		p.log.Append(p.kind, buf[:n])
	}
	return max(n, 0), err
}

// run reads the pipe to its end.
func (p *Pump) run() {
	defer close(p.ended)
	defer func() { _ = p.file.Close() }()
	buf := p.buffers.Get().(*[]byte) //nolint:errcheck // the pool holds nothing else
	defer p.buffers.Put(buf)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	done := p.done
	for {
		var n int
		var err error
		closed := p.pipe.Read(func(fd uintptr) bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			n, err = p.read(int(fd), *buf) //nolint:gosec // a descriptor is small
			return err != unix.EAGAIN      //nolint:errorlint // an error number of the kernel
		})
		if closed != nil || err != nil || n == 0 {
			return
		}
		if n < smallRead && !p.prompt {
			timer.Reset(smallPause)
			select {
			case <-timer.C:
			case <-done:
				done = nil // a process that prints on is read with pauses
			}
		}
	}
}
