package kernel

import (
	"context"
	"crypto/rand"
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

	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
)

// bootTimeout is how long a kernel may take to start: imports from a cold disk in a sandbox with little CPU take long.
const bootTimeout = 90 * time.Second

// bootOutputBytes is how much of a kernel's output during its start is kept for the error.
const bootOutputBytes = 4 << 10

// kernel is one running kernel: a process and the channels to it.
type kernel struct {
	id      string // in the environment of all its processes
	spec    kernelSpec
	proc    *process.Process
	ready   chan struct{} // closed when it can be used, or when err is set
	err     error
	codec   codec
	addrs   endpoints
	control *control // our own Python kernel only
	shell   zmq4.Socket
	iopub   zmq4.Socket // other kernels only
	manage  zmq4.Socket // other kernels only: the control channel
	cancel  context.CancelFunc
	closed  chan struct{} // closed by end
	once    sync.Once
	wg      sync.WaitGroup

	mu      sync.Mutex
	current *kernelRun

	questions map[string]chan<- json.RawMessage // waiting for their answers, by message id
	onPurpose bool                              // the agent ended it
}

// mark is the environment entry that identifies the kernel's processes.
func (k *kernel) mark() string { return process.KernelEnvName + "=" + k.id }

// startKernel starts a kernel and returns at once. Its channel ready is closed when it can be used.
func (ks *Kernels) startKernel(spec kernelSpec) *kernel {
	ctx, cancel := context.WithCancel(ks.life)
	k := &kernel{
		id: "k" + rand.Text(), spec: spec, ready: make(chan struct{}), closed: make(chan struct{}),
		codec: newCodec(), cancel: cancel,
	}
	ks.running.Go(func() {
		k.err = ks.boot(ctx, k)
		if k.err != nil {
			k.end(ks.cfg.Reaper)
		}
		close(k.ready)
		if k.proc != nil {
			<-k.proc.Done()
		}
		k.end(ks.cfg.Reaper)
		k.closeChannels()
	})
	return k
}

// boot starts the process and connects to it.
func (ks *Kernels) boot(ctx context.Context, k *kernel) error {
	var err error
	if k.spec.own {
		k.addrs = ipcEndpoints(ks.cfg.RunDir, k.id, k.codec)
	} else if k.addrs, err = tcpEndpoints(ctx, k.codec); err != nil {
		return err
	}
	k.addrs.Name = k.spec.name
	file := filepath.Join(ks.cfg.RunDir, k.id+".json")
	if err := k.addrs.write(file); err != nil {
		return fmt.Errorf("write connection file: %w", err)
	}
	defer func() { _ = os.Remove(file) }()
	bootOutput, err := ks.launch(k, file)
	if err != nil {
		return err
	}
	timer := time.AfterFunc(bootTimeout, func() { k.end(ks.cfg.Reaper) })
	defer timer.Stop()
	quit := make(chan struct{}) // closed when the process has exited
	go func() {
		select {
		case <-k.proc.Done():
		case <-k.closed:
		}
		close(quit)
	}()
	if k.spec.own {
		err = k.connectOwn(ctx, quit, ks.cfg.Reaper)
	} else {
		err = k.connectOther(ctx, quit, ks.cfg.Reaper)
	}
	if err != nil {
		if text := bootOutput(); text != "" {
			return fmt.Errorf("%w: %s", err, text)
		}
		return err
	}
	return nil
}

// launch starts the process. bootOutput returns the end of its standard error during startup.
func (ks *Kernels) launch(k *kernel, file string) (bootOutput func() string, err error) {
	null, err := process.OpenNull()
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
	set := map[string]string{process.KernelEnvName: k.id}
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
	if path := process.LookPath(ks.cfg.Env, argv[0]); !strings.Contains(argv[0], "/") && path != "" {
		argv[0] = path
	}
	p, err := ks.cfg.Reaper.Start(argv, process.WithEnv(ks.cfg.Env, set), ks.cfg.Workspace, files)
	if err != nil {
		_ = output.Close()
		return nil, fmt.Errorf("start kernel: %w", err)
	}
	k.mu.Lock()
	k.proc = p
	k.mu.Unlock()
	select {
	case <-k.closed: // end was called before the process existed
		ks.cfg.Reaper.Signal(p, syscall.SIGKILL)
	default:
	}
	return k.collect(output), nil
}

// collect reads the standard error of the process to its end, and keeps the last part.
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
		case <-time.After(100 * time.Millisecond): // a child process keeps the pipe open
		}
		mu.Lock()
		defer mu.Unlock()
		return strings.TrimSpace(execution.StripANSI(strings.ToValidUTF8(string(tail), "\uFFFD")))
	}
}

// connectOwn connects to our own Python kernel once it reports that it is ready.
func (k *kernel) connectOwn(ctx context.Context, quit <-chan struct{}, r *process.Reaper) error {
	stop := context.AfterFunc(ctx, func() { _ = k.control.conn.Close() })
	defer stop()
	first, err := k.control.read()
	if err != nil || first.Op != "ready" {
		return errors.New("the Python kernel ended while it started")
	}
	if k.shell, err = k.addrs.connect(ctx, k.addrs.Shell, quit, zmq4.NewDealer); err != nil {
		return err
	}
	k.wg.Go(func() { k.followShell(r) })
	k.wg.Go(func() { k.followControl(r) })
	return nil
}

// end kills the kernel and its session. It is idempotent.
func (k *kernel) end(r *process.Reaper) {
	k.once.Do(func() {
		close(k.closed)
		k.mu.Lock()
		p := k.proc
		k.mu.Unlock()
		if p != nil {
			r.Signal(p, syscall.SIGKILL)
			process.KillTree(p.PID, "")
		}
		k.cancel()
	})
}

// closeChannels closes the connections to a kernel that has ended.
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
	k.addrs.remove()
}

// stopOnPurpose ends the kernel and its processes, and records that the agent did so.
func (k *kernel) stopOnPurpose(r *process.Reaper) {
	k.mu.Lock()
	k.onPurpose = true
	k.mu.Unlock()
	k.end(r)
	process.KillTree(0, k.mark())
}

// dead reports whether the kernel has ended or failed to start.
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
	case <-k.proc.Done():
		return true
	case <-k.closed:
		return true
	default:
		return false
	}
}
