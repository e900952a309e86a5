package process

import (
	"errors"
	"os"
	"sync"
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
	kind    agent.FrameType
	log     *execution.Log
	buffers *sync.Pool

	requests chan bool     // true: finish; false: only drain
	wake     chan struct{} // ends a pause
	answer   chan struct{} // one for each request
	ended    chan struct{} // closed at the end of the pipe
	tee      func([]byte)  // also gets the logged data
}

// newBufferPool returns a pool of read buffers.
func newBufferPool() *sync.Pool {
	return &sync.Pool{New: func() any { b := make([]byte, execution.MaxOutputFrame); return &b }}
}

// Pump copies a pipe into a log as frames of a kind. It takes over fd, the read end. tee, when not nil, gets the same data.
func (r *Reaper) Pump(fd int, kind agent.FrameType, log *execution.Log, tee func([]byte)) *Pump {
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeBytes) //nolint:gosec // a descriptor is small
	_ = unix.SetNonblock(fd, true)
	p := &Pump{
		file: os.NewFile(uintptr(fd), "pipe"), kind: kind, log: log, buffers: r.buffers, //nolint:gosec // a descriptor is small
		requests: make(chan bool, 1), wake: make(chan struct{}, 1), answer: make(chan struct{}), ended: make(chan struct{}), tee: tee,
	}
	go p.run()
	return p
}

// Drain returns once the current content of the pipe is in the log. Only one caller at a time may use a pump.
func (p *Pump) Drain() { p.request(false) }

// Finish is Drain, and discards later output.
func (p *Pump) Finish() { p.request(true) }

func (p *Pump) request(finish bool) {
	select {
	case p.requests <- finish:
	case <-p.ended:
		return
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
	_ = p.file.SetReadDeadline(time.Unix(1, 0)) // wakes the reader
	select {
	case <-p.answer:
	case <-p.ended:
	}
}

func (p *Pump) run() {
	defer close(p.ended)
	defer func() { _ = p.file.Close() }()
	buf := p.buffers.Get().(*[]byte) //nolint:errcheck,forcetypeassert // the pool holds nothing else
	defer p.buffers.Put(buf)
	discard := false
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		n, err := p.file.Read(*buf)
		if n > 0 && !discard {
			p.put((*buf)[:n])
		}
		switch {
		case err == nil && n < smallRead:
			timer.Reset(smallPause)
			select {
			case <-timer.C:
			case <-p.wake:
			}
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			_ = p.file.SetReadDeadline(time.Time{})
			select {
			case finish := <-p.requests:
				p.take(*buf, discard)
				discard = discard || finish
				p.answer <- struct{}{}
			default:
			}
		default:
			return
		}
	}
}

func (p *Pump) put(b []byte) {
	if p.tee != nil {
		p.tee(b)
	}
	p.log.Append(p.kind, b)
}

// take reads the current content of the pipe.
func (p *Pump) take(buf []byte, discard bool) {
	left := p.waiting()
	for left > 0 {
		n, err := p.file.Read(buf[:min(left, len(buf))])
		if n > 0 && !discard {
			p.put(buf[:n])
		}
		if err != nil {
			return
		}
		left -= n
	}
}

// waiting returns the number of bytes in the pipe.
func (p *Pump) waiting() int {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	if err := raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil { //nolint:gosec // a descriptor is small
		return 0
	}
	return n
}
