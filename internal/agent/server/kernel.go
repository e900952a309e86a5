package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-zeromq/zmq4"
	"golang.org/x/sys/unix"
)

// bootTimeout is what a kernel has to come up: imports from a cold disk in a sandbox with a sliver of a CPU take long.
const bootTimeout = 90 * time.Second

// bootOutputBytes is how much of what a kernel says while it starts is kept for the error.
const bootOutputBytes = 4 << 10

// kernel is one running kernel: a process and the channels to it.
type kernel struct {
	id      string // in the environment of all it starts
	spec    kernelSpec
	proc    *process
	ready   chan struct{} // closed when it can be used, or err says why not
	err     error
	codec   codec
	ends    endpoints
	control *control // our own Python kernel only
	shell   zmq4.Socket
	iopub   zmq4.Socket // other kernels only
	manage  zmq4.Socket // other kernels only: the control channel
	cancel  context.CancelFunc
	closed  chan struct{} // closed by end: connecting stops
	once    sync.Once
	wg      sync.WaitGroup

	mu      sync.Mutex
	current *kernelRun
	asked   map[string]chan<- json.RawMessage // probes that wait for their answers
	meant   bool                              // it was ended on purpose
}

// mark is in the environment of everything that the kernel starts.
func (k *kernel) mark() string { return "SBX_KERNEL=" + k.id }

// startKernel starts a kernel and returns at once; ready tells when it can be used.
func (s *Server) startKernel(spec kernelSpec) *kernel {
	ctx, cancel := context.WithCancel(s.life)
	k := &kernel{
		id: "k" + randomHex(), spec: spec, ready: make(chan struct{}), closed: make(chan struct{}),
		codec: newCodec(), cancel: cancel,
	}
	s.kernelsUp.Go(func() {
		k.err = s.boot(ctx, k)
		if k.err != nil {
			k.end(s.reaper)
		}
		close(k.ready)
		if k.proc != nil {
			<-k.proc.done
		}
		k.end(s.reaper)
		k.closeChannels()
	})
	return k
}

// boot starts the process and connects to it.
func (s *Server) boot(ctx context.Context, k *kernel) error {
	var err error
	if k.spec.own {
		k.ends = ipcEndpoints(s.cfg.RunDir, k.id, k.codec)
	} else if k.ends, err = tcpEndpoints(ctx, k.codec); err != nil {
		return err
	}
	k.ends.Name = k.spec.name
	file := filepath.Join(s.cfg.RunDir, k.id+".json")
	if err := k.ends.write(file); err != nil {
		return fmt.Errorf("write connection file: %w", err)
	}
	defer func() { _ = os.Remove(file) }()
	complaint, err := s.launch(k, file)
	if err != nil {
		return err
	}
	timer := time.AfterFunc(bootTimeout, func() { k.end(s.reaper) })
	defer timer.Stop()
	quit := make(chan struct{}) // closed when the process is gone
	go func() {
		select {
		case <-k.proc.done:
		case <-k.closed:
		}
		close(quit)
	}()
	if k.spec.own {
		err = k.joinOwn(ctx, quit, s.buffers, s.reaper)
	} else {
		err = k.join(ctx, quit, s.reaper)
	}
	if err != nil {
		if text := complaint(); text != "" {
			return fmt.Errorf("%w: %s", err, text)
		}
		return err
	}
	return nil
}

// launch starts the process. complaint gives the end of what it has written while it started.
func (s *Server) launch(k *kernel, file string) (complaint func() string, err error) {
	null, err := openNull()
	if err != nil {
		return nil, fmt.Errorf("open null device: %w", err)
	}
	defer func() { _ = syscall.Close(null) }()
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	_ = unix.SetNonblock(pipe[0], true)
	output := os.NewFile(uintptr(pipe[0]), "boot") //nolint:gosec // a descriptor is small
	defer func() { _ = syscall.Close(pipe[1]) }()
	files := []uintptr{uintptr(null), uintptr(null), uintptr(pipe[1])} //nolint:gosec // descriptors are small
	set := map[string]string{"SBX_KERNEL": k.id}
	for name, value := range k.spec.env {
		set[name] = value
	}
	if k.spec.own {
		var theirs int
		if k.control, theirs, err = newControl(); err != nil {
			_ = output.Close()
			return nil, err
		}
		defer func() { _ = syscall.Close(theirs) }()
		files = append(files, uintptr(theirs)) //nolint:gosec // a descriptor is small
		set["SANDFARM_CONTROL_FD"] = "3"
	}
	argv := k.spec.command(file)
	if path := lookPath(s.env, argv[0]); !strings.Contains(argv[0], "/") && path != "" {
		argv[0] = path
	}
	p, err := s.reaper.start(argv, withEnv(s.env, set), s.cfg.Workspace, files)
	if err != nil {
		_ = output.Close()
		return nil, fmt.Errorf("start kernel: %w", err)
	}
	k.mu.Lock()
	k.proc = p
	k.mu.Unlock()
	select {
	case <-k.closed: // ended before it was there to be ended
		s.reaper.signal(p, syscall.SIGKILL)
	default:
	}
	return k.collect(output), nil
}

// collect reads what the process says to its standard error until it closes it, and keeps the end.
func (k *kernel) collect(output *os.File) func() string {
	var mu sync.Mutex
	var tail []byte
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer func() { _ = output.Close() }()
		buf := make([]byte, bootOutputBytes)
		for {
			n, err := output.Read(buf)
			mu.Lock()
			tail = append(tail, buf[:n]...)
			tail = tail[max(0, len(tail)-bootOutputBytes):]
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return func() string {
		select {
		case <-read:
		case <-time.After(100 * time.Millisecond): // something it started holds the pipe
		}
		mu.Lock()
		defer mu.Unlock()
		return strings.TrimSpace(stripANSI(strings.ToValidUTF8(string(tail), "\uFFFD")))
	}
}

// joinOwn connects to our own Python kernel once it has said that it is ready.
func (k *kernel) joinOwn(ctx context.Context, quit <-chan struct{}, buffers *sync.Pool, r *reaper) error {
	stop := context.AfterFunc(ctx, func() { _ = k.control.conn.Close() })
	defer stop()
	first, err := k.control.read()
	if err != nil || first.Op != "ready" {
		return errors.New("the Python kernel ended while it started")
	}
	if k.shell, err = k.ends.connect(ctx, k.ends.Shell, quit, zmq4.NewDealer); err != nil {
		return err
	}
	k.wg.Go(func() { k.followShell(r) })
	k.wg.Go(func() { k.followControl(buffers, r) })
	return nil
}

// end kills the kernel and what belongs to its session. It is idempotent.
func (k *kernel) end(r *reaper) {
	k.once.Do(func() {
		close(k.closed)
		k.mu.Lock()
		p := k.proc
		k.mu.Unlock()
		if p != nil {
			r.signal(p, syscall.SIGKILL)
			killTree(p.pid, "")
		}
		k.cancel()
	})
}

// closeChannels closes what leads to a kernel that is gone.
func (k *kernel) closeChannels() {
	for _, socket := range []zmq4.Socket{k.shell, k.iopub, k.manage} {
		if socket != nil {
			_ = socket.Close()
		}
	}
	if k.control != nil {
		_ = k.control.conn.Close()
	}
	k.wg.Wait()
	k.ends.remove()
}

// stopOnPurpose ends the kernel, so that its end is no surprise, and all that it has started.
func (k *kernel) stopOnPurpose(r *reaper) {
	k.mu.Lock()
	k.meant = true
	k.mu.Unlock()
	k.end(r)
	killTree(0, k.mark())
}

// dead reports whether the kernel has ended or never came up.
func (k *kernel) dead() bool {
	select {
	case <-k.ready:
		if k.err != nil {
			return true
		}
	default:
		return false
	}
	select {
	case <-k.proc.done:
		return true
	case <-k.closed:
		return true
	default:
		return false
	}
}
