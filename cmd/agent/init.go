package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/agent/server"
)

const (
	// gcPercent and memoryGoal trade a little CPU for a small agent.
	gcPercent  = 50
	memoryGoal = 48 << 20
	// spareThreads are created at the start, so that the agent still works when user code has used up the sandbox's process limit.
	spareThreads = 12
	// maxProcs bounds the threads that run Go code at once.
	maxProcs = 4
)

type initOptions struct {
	workspace, run, home, tmp, socket string
	uid                               int
	egress, proxy                     bool
	authority                         string
	pids                              uint64
	endsIn                            time.Duration
}

// runInit is PID 1. It exits on its own only when the sandbox's deadline has passed and no worker closed it; no signal from
// user code ends it.
func runInit(ctx context.Context, o initOptions) error {
	// User code can lower its own score as far as 0, so the agent does too. The kernel lets no process write the file that is protected, which is
	// so from the start for a program that cannot be read. No user code runs yet; an agent that user code starts is never PID 1.
	if os.Getpid() == 1 {
		_ = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	}
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("protect process: %w", err)
	}
	if err := limitProcesses(o.pids); err != nil {
		return err
	}
	if os.Getpid() != 1 { // with an init process of the engine, the agent still adopts orphans
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("adopt orphans: %w", err)
		}
	}
	drainSignals()
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryGoal)
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), maxProcs))
	warmThreads()
	cfg := server.Config{
		Version: version, Workspace: o.workspace, RunDir: o.run, HomeDir: o.home, TmpDir: o.tmp, ReapAll: true,
		EndsIn: o.endsIn, End: func() { os.Exit(0) }, // when PID 1 exits, the kernel kills everything in the sandbox
	}
	if os.Getpid() == 1 { // kill would end all programs of the machine elsewhere
		all := func() { _ = unix.Kill(-1, unix.SIGKILL) }
		cfg.Sockets = process.NewSocketLimit(all, "/proc/net/sockstat")
		cfg.Terminals = process.NewTerminalLimit(all, "/dev/pts")
		go cfg.Sockets.Run(ctx)
		go cfg.Terminals.Run(ctx)
		if process.OnGVisor() {
			cfg.Memory = process.NewMemoryLimit(all, "/proc/meminfo", "/proc/sentry-meminfo", maxTasks())
			go cfg.Memory.Run(ctx)
		}
	}
	if o.egress || o.proxy {
		cfg.Egress, cfg.Proxy = agent.EgressAddr, o.proxy
	}
	var err error
	if cfg.Authority, err = base64.StdEncoding.DecodeString(o.authority); err != nil {
		return fmt.Errorf("read --authority: %w", err)
	}
	srv, err := server.New(cfg)
	if err != nil {
		return err
	}
	defer func() { _ = srv.Close() }()
	return srv.ListenAndServe(ctx, o.socket, o.uid)
}

// limitProcesses sets the limit of processes for the agent and all that it starts, which cannot raise it; 0 leaves it as it is. The kernel counts the
// processes and threads of the user on the machine, so it is for engines that have no limit of their own.
func limitProcesses(n uint64) error {
	var limit unix.Rlimit
	if n == 0 {
		return nil
	}
	err := unix.Getrlimit(unix.RLIMIT_NPROC, &limit)
	if err == nil {
		limit.Max = min(n, limit.Max)
		limit.Cur = limit.Max
		err = unix.Setrlimit(unix.RLIMIT_NPROC, &limit)
	}
	if err != nil {
		return fmt.Errorf("limit processes: %w", err)
	}
	return nil
}

// maxTasks is how many processes and threads the sandbox may have.
func maxTasks() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &limit); err != nil {
		return 0
	}
	return int(min(limit.Cur, 1<<16)) //nolint:gosec // small
}

// drainSignals catches every signal that can be caught. It does not ignore them: an ignored signal stays ignored in children, and Python
// would never see an interrupt. The signals Go cannot catch (32 to 34, used by the C library) cannot reach PID 1 from inside its namespace.
func drainSignals() {
	signals := make(chan os.Signal, 16)
	for n := 1; n <= 64; n++ {
		switch s := syscall.Signal(n); s {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG:
		default:
			signal.Notify(signals, s)
		}
	}
	go func() {
		for range signals { //nolint:revive // they are taken for nothing
		}
	}()
}

// warmThreads starts threads and keeps them for later use.
func warmThreads() {
	var started, done sync.WaitGroup
	release := make(chan struct{})
	for range spareThreads {
		started.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			started.Done()
			<-release
		})
	}
	started.Wait()
	close(release)
	done.Wait()
}
