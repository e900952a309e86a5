package server

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
)

// pipeBytes is the size asked for the pipes of an execution: fewer switches between writer and agent. Refusal does no harm.
const pipeBytes = 256 << 10

const (
	// smallRead is a read after which more small writes are likely to come.
	smallRead = 4 << 10
	// smallPause lets them gather: a writer whose reader is not waiting is several times faster.
	smallPause = time.Millisecond
)

// pump carries one pipe into a log. After finish it reads on to the end of the pipe and throws it away, so that processes left behind
// never get SIGPIPE and never show up in a later log.
type pump struct {
	file    *os.File
	kind    agent.FrameType
	log     *frameLog
	buffers *sync.Pool

	asks   chan bool     // true: finish; false: only drain
	wake   chan struct{} // ends a pause
	answer chan struct{} // one for each ask
	ended  chan struct{} // closed at the end of the pipe
	tee    func([]byte)  // sees what goes to the log; set before anything is read
}

// newBufferPool makes a pool of read buffers.
func newBufferPool() *sync.Pool {
	return &sync.Pool{New: func() any { b := make([]byte, outputFrameBytes); return &b }}
}

// newPump takes over the read end of a pipe. tee may be nil.
func newPump(fd int, kind agent.FrameType, log *frameLog, buffers *sync.Pool, tee func([]byte)) *pump {
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeBytes) //nolint:gosec // a descriptor is small
	_ = unix.SetNonblock(fd, true)
	p := &pump{
		file: os.NewFile(uintptr(fd), "pipe"), kind: kind, log: log, buffers: buffers, //nolint:gosec // a descriptor is small
		asks: make(chan bool, 1), wake: make(chan struct{}, 1), answer: make(chan struct{}), ended: make(chan struct{}), tee: tee,
	}
	go p.run()
	return p
}

// drain returns once everything that is in the pipe now is in the log. Only one caller at a time may ask.
func (p *pump) drain() { p.ask(false) }

// finish is drain, and what comes later is thrown away.
func (p *pump) finish() { p.ask(true) }

func (p *pump) ask(finish bool) {
	select {
	case p.asks <- finish:
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

func (p *pump) run() {
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
			case finish := <-p.asks:
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

func (p *pump) put(b []byte) {
	if p.tee != nil {
		p.tee(b)
	}
	p.log.append(p.kind, b)
}

// take reads as many bytes as are in the pipe now.
func (p *pump) take(buf []byte, discard bool) {
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

// waiting gives the number of bytes in the pipe.
func (p *pump) waiting() int {
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
