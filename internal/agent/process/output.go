package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// outputTimeout bounds the run of a program by Reaper.Output: in a sandbox with little CPU even short programs take long.
const outputTimeout = 30 * time.Second

// MaxOutputBytes bounds the result of Reaper.Output.
const MaxOutputBytes = 4 << 20

// Output runs a program of the image and returns its output. An exit code other than 0 is an error.
func (r *Reaper) Output(argv, env []string, dir string) ([]byte, error) {
	null, err := OpenNull()
	if err != nil {
		return nil, fmt.Errorf("open null device: %w", err)
	}
	defer func() { _ = syscall.Close(null) }()
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	_ = unix.SetNonblock(pipe[0], true)
	out := os.NewFile(uintptr(pipe[0]), "output") //nolint:gosec // a descriptor is small
	defer func() { _ = out.Close() }()
	p, err := r.Start(argv, env, dir, []uintptr{uintptr(null), uintptr(pipe[1]), uintptr(null)}) //nolint:gosec // descriptors are small
	_ = syscall.Close(pipe[1])
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(argv[0]), err)
	}
	_ = out.SetReadDeadline(time.Now().Add(outputTimeout))
	raw, err := io.ReadAll(io.LimitReader(out, MaxOutputBytes))
	if err != nil {
		r.Signal(p, syscall.SIGKILL)
	}
	timer := time.AfterFunc(outputTimeout, func() { r.Signal(p, syscall.SIGKILL) })
	defer timer.Stop()
	<-p.Done()
	if err == nil && p.ExitCode() != 0 {
		err = fmt.Errorf("exit code %d", p.ExitCode())
	}
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", filepath.Base(argv[0]), err)
	}
	return raw, nil
}

// tailBytes is how much a Tail keeps.
const tailBytes = 64 << 10

// Tail keeps the end of a stream. The zero value is empty. It is safe for concurrent use.
type Tail struct {
	mu   sync.Mutex
	data []byte
}

// Add appends the next bytes of the stream.
func (t *Tail) Add(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, b...)
	if over := len(t.data) - tailBytes; over > 0 {
		t.data = append([]byte(nil), t.data[over:]...)
	}
}

// String returns the end of the stream as text, without colours.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return execution.StripANSI(strings.ToValidUTF8(string(t.data), "\uFFFD"))
}

// knownWriters is how many writers of one input are remembered, the last used ones: far more than write at once.
const knownWriters = 256

// writers know how far each writer of an input has come, so that what is sent again is not written again. The zero value knows none.
type writers struct {
	mu   sync.Mutex
	used []*writer // the last used one last
}

// writer is one writer of an input.
type writer struct {
	name string

	mu       sync.Mutex // held while its bytes are written
	position int64      // bytes that it has written, and one for the end of the input
}

// get finds a writer, or begins one that has written nothing.
func (w *writers) get(name string) *writer {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := slices.IndexFunc(w.used, func(known *writer) bool { return known.name == name })
	one := &writer{name: name}
	if at >= 0 {
		one = w.used[at]
		w.used = slices.Delete(w.used, at, at+1)
	} else if len(w.used) >= knownWriters {
		w.used = slices.Delete(w.used, 0, 1)
	}
	w.used = append(w.used, one)
	return one
}

// WriteFrom writes p, whose first byte has the position from among all that the writer of a name writes, and ends the input then if end says so;
// the end has a position, too. What that writer has written before is skipped, so a call can be repeated. It returns the position behind what is
// written of p and end: less than all if the process reads nothing for ten seconds. CodeConflict: the process has no open input, or bytes before
// from are missing.
func (i *Input) WriteFrom(name string, from int64, p []byte, end bool) (position int64, err error) {
	if i == nil {
		return 0, errNoInput
	}
	w := i.writers.get(name)
	w.mu.Lock()
	defer w.mu.Unlock()
	last := from + int64(len(p))
	if from < 0 || from > w.position {
		return 0, farm.Conflictf("The input has %d bytes of this writer, so it cannot continue at %d.", w.position, from)
	}
	if w.position < last {
		n, err := i.Write(p[w.position-from:])
		if w.position += int64(n); err != nil && !errors.Is(err, errUnread) {
			return w.position, err
		}
	}
	if !end || w.position < last {
		return min(w.position, last), nil
	}
	if w.position == last {
		if err := i.End(); err != nil {
			return w.position, err
		}
		w.position++
	}
	return last + 1, nil
}

// pipeBytes is the size of the pipes of an execution, larger than the default for fewer switches between writer and agent. The
// kernel may refuse it.
const pipeBytes = 256 << 10

const (
	// smallRead is a read size below which more small writes are likely to follow.
	smallRead = 4 << 10
	// minPause lets them accumulate: a writer is several times faster while its reader is not waiting. The pause doubles up to maxPause while each
	// finds more, since each piece costs the agent, the worker and the API server a turn; one that finds nothing halves it.
	minPause, maxPause = time.Millisecond, 16 * time.Millisecond
)

// Pump copies one pipe into a log. After Finish it reads the pipe to its end and discards the data, so that background processes
// never get SIGPIPE and their output never appears in a later log.
type Pump struct {
	fd      int             // the read end of the pipe
	poll    *os.File        // an epoll instance with the pipe alone
	wait    syscall.RawConn // of poll
	kind    agent.FrameType
	log     *execution.Log
	buffers *sync.Pool
	tee     func([]byte)  // also gets the logged data
	longest time.Duration // pause; 0: it reads without pauses

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
	return r.pump(fd, kind, log, tee, maxPause)
}

func (r *Reaper) pump(fd int, kind agent.FrameType, log *execution.Log, tee func([]byte), longest time.Duration) *Pump {
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeBytes) //nolint:gosec // a descriptor is small
	_ = unix.SetNonblock(fd, true)
	p := &Pump{fd: fd, kind: kind, log: log, buffers: r.buffers, tee: tee, longest: longest, done: make(chan struct{}), ended: make(chan struct{})}
	if err := p.open(); err != nil { // without a descriptor
		_ = unix.Close(fd)
		close(p.ended)
		return p
	}
	go p.run()
	return p
}

// open makes the epoll instance of the pipe. In that of the Go runtime each write would wake the agent, also in a pause: tens of thousands of times a
// second, which costs both and, with many sandboxes, the machine. Here the pipe is armed for one event when the pump waits.
func (p *Pump) open() error {
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	_ = unix.SetNonblock(poll, true)
	p.poll = os.NewFile(uintptr(poll), "poll") //nolint:gosec // a descriptor is small
	err = unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, p.fd, &unix.EpollEvent{Events: unix.EPOLLONESHOT})
	if err == nil {
		p.wait, err = p.poll.SyscallConn()
	}
	if err != nil {
		_ = p.poll.Close()
	}
	return err
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
	if p.wait != nil {
		_ = p.wait.Control(func(uintptr) { p.take() }) // an error means that the pipe has ended
	}
	if finish && !p.finished {
		p.finished = true
		close(p.done)
	}
}

// take reads the current content of the pipe. The caller holds mu.
func (p *Pump) take() {
	left, err := unix.IoctlGetInt(p.fd, unix.TIOCINQ)
	if err != nil || left == 0 {
		return
	}
	buf := p.buffers.Get().(*[]byte) //nolint:errcheck // the pool holds nothing else
	defer p.buffers.Put(buf)
	for left > 0 {
		n, err := p.read((*buf)[:min(left, len(*buf))])
		if err != nil || n == 0 {
			return
		}
		left -= n
	}
}

// read reads once, and logs what it has read. The caller holds mu.
func (p *Pump) read(buf []byte) (n int, err error) {
	p.reading.Store(true)
	defer p.reading.Store(false)
	for {
		n, err = unix.Read(p.fd, buf)
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
	defer func() {
		_ = p.poll.Close() // it waits for drain, which uses the pipe
		_ = unix.Close(p.fd)
	}()
	buf := p.buffers.Get().(*[]byte) //nolint:errcheck // the pool holds nothing else
	defer p.buffers.Put(buf)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	done, armed, pause, paused := p.done, false, minPause, false
	for {
		var n int
		var err error
		waited := false
		closed := p.wait.Read(func(poll uintptr) bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			if armed {
				seen, _ := unix.EpollWait(int(poll), make([]unix.EpollEvent, 1), 0) //nolint:gosec // a descriptor is small
				armed = seen <= 0                                                   // drain may have taken what it was woken for
			}
			if n, err = p.read(*buf); err != unix.EAGAIN { //nolint:errorlint // an error number of the kernel
				return true
			}
			err = unix.EpollCtl(int(poll), unix.EPOLL_CTL_MOD, p.fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT}) //nolint:gosec // as above
			armed, waited = true, true
			return err != nil
		})
		if closed != nil || err != nil || n == 0 {
			return
		}
		pause = p.next(pause, paused, waited, n == len(*buf))
		if paused = n < smallRead && p.longest > 0; paused {
			timer.Reset(pause)
			select {
			case <-timer.C:
			case <-done:
				done = nil // a process that prints on is read with pauses
			}
		}
	}
}

// next is the pause after a small read, from the last one. paused says that it came just before the read, waited that the pipe was empty, full that
// the read filled its buffer: then the pipe may be full, and its writer waits.
func (p *Pump) next(pause time.Duration, paused, waited, full bool) time.Duration {
	switch {
	case full:
		return minPause
	case waited:
		return max(pause/2, minPause)
	case paused:
		return min(2*pause, p.longest)
	default:
		return pause
	}
}
