package kernel

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
)

// bootTimeout is how long a kernel may take to start: imports from a cold disk in a sandbox with little CPU take long.
const bootTimeout = 90 * time.Second

// bootOutputBytes is how much of a kernel's output during its start is kept for the error.
const bootOutputBytes = 4 << 10

// kernel is one running Python kernel: a process and the socket to it.
type kernel struct {
	id      string // in the environment of all its processes
	proc    *process.Process
	ready   chan struct{} // closed when it can be used, or when err is set
	err     error
	control *control
	cancel  context.CancelFunc
	closed  chan struct{} // closed by end
	once    sync.Once
	wg      sync.WaitGroup

	mu      sync.Mutex
	current *kernelRun

	question  uint64            // the number of the last question
	questions map[uint64]*posed // by number
	onPurpose bool              // the agent ended it
	announced bool              // notebooks were told of its end before
}

// mark is the environment entry that identifies the kernel's processes.
func (k *kernel) mark() string { return process.KernelEnvName + "=" + k.id }

// startKernel starts a kernel and returns at once. Its channel ready is closed when it can be used.
func (ks *Kernels) startKernel(at *slot, python string) *kernel {
	ctx, cancel := context.WithCancel(ks.life)
	k := &kernel{
		id: "k" + rand.Text(), ready: make(chan struct{}), closed: make(chan struct{}), cancel: cancel,
		questions: map[uint64]*posed{},
	}
	ks.running.Go(func() {
		refused := process.Refusals()
		k.err = ks.boot(ctx, k, at, python)
		if k.err != nil {
			k.end(ks.cfg.Reaper)
			k.err = because(k.err, ks.fullness(), process.Refusals() > refused)
		}
		close(k.ready)
		if k.proc != nil {
			<-k.proc.Done()
			if k.err == nil && !k.busy() && !k.endAnnounced() { // otherwise its execution says so
				at.messages.add(agent.Message{Kind: KindEnded, Content: json.RawMessage("{}")})
			}
		}
		k.end(ks.cfg.Reaper)
		if k.control != nil {
			_ = k.control.conn.Close()
		}
		k.wg.Wait()
	})
	return k
}

// boot starts the process and waits until it reports that it is ready.
func (ks *Kernels) boot(ctx context.Context, k *kernel, at *slot, python string) error {
	bootOutput, err := ks.launch(k, at.cwd, python)
	if err != nil {
		return err
	}
	timer := time.AfterFunc(bootTimeout, func() { k.end(ks.cfg.Reaper) })
	defer timer.Stop()
	stop := context.AfterFunc(ctx, func() { _ = k.control.conn.Close() })
	defer stop()
	if first, err := k.control.read(); err != nil || first.Op != "ready" {
		err = errors.New("the Python kernel ended while it started")
		if text := bootOutput(); text != "" {
			return fmt.Errorf("%w: %s", err, text)
		}
		return err
	}
	k.wg.Go(func() { ks.follow(k, at) })
	return nil
}

// launch starts the process. bootOutput returns the end of its standard error during startup.
func (ks *Kernels) launch(k *kernel, cwd, python string) (bootOutput func() string, err error) {
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
	var theirs int
	if k.control, theirs, err = newControl(); err != nil {
		_ = output.Close()
		return nil, err
	}
	defer func() { _ = syscall.Close(theirs) }()
	// The control socket is descriptor 3, as launcher.py says. It is not named in the environment, which user code reads in /proc.
	files := []uintptr{uintptr(null), uintptr(null), uintptr(pipe[1]), uintptr(theirs)} //nolint:gosec // descriptors are small
	env := process.WithEnv(ks.cfg.Env, map[string]string{process.KernelEnvName: k.id})
	p, err := ks.cfg.Reaper.Start([]string{python, ks.launcherPath()}, env, cwd, files)
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

// announceRestart tells notebooks that the kernel will be restarted on request: what follows is no crash.
func (k *kernel) announceRestart(to *messages) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.announced {
		k.announced = true
		to.add(agent.Message{Kind: KindEnded, Content: json.RawMessage(`{"asked":true}`)})
	}
}

// endAnnounced reports whether notebooks were told of the kernel's end.
func (k *kernel) endAnnounced() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.announced
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
