package farmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/internal/embedded"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Up runs a whole farm in this process until ctx ends: a worker, the scheduler and the API, and Redis and S3 unless the
// settings name them. It prints each step on out, and then how to use the farm.
func Up(ctx context.Context, s *Settings, version string, out io.Writer) (err error) {
	if err := checkPorts(ctx, s); err != nil {
		return err
	}
	if err := haveAgent(); err != nil {
		return err
	}
	log := s.Log.logger()
	say := newConsole(out)
	data, err := openData(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	if err := data.useSecretKey(s); err != nil {
		return err
	}

	counted, err := newMetrics("up", version)
	if err != nil {
		return err
	}
	e, build, err := s.workerEngine(data.Namespace, log, counted.engine)
	if err != nil {
		return err
	}
	defer func() { _ = e.Close() }()
	if err := e.Ping(ctx); err != nil && s.Engine.Kind == kindKubernetes {
		return fmt.Errorf("reach the cluster: %w", err)
	} else if err != nil {
		return errors.New("no Docker engine answers: start it (systemctl start docker, or run dockerd as root), or use `make run`, which installs and starts one if it is allowed to")
	}
	p, err := open(ctx, s, log, counted, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if !p.Persistent {
		say.line("warning: redis-server is not installed, so jobs are kept in memory and lost when the farm stops (Debian: apt-get install redis-server)")
	}

	var running []stopper // stopped in reverse
	defer func() {
		if len(running) > 0 {
			say.line(stopNote(s.Worker.StopGrace))
		}
		for i := len(running) - 1; i >= 0; i-- {
			running[i].Stop()
		}
	}()
	var building sync.Once
	w, err := p.newWorker(e, build, version, p.callback(data.Secret), func(progress farm.Progress) {
		building.Do(func() { say.line("building the sandbox image, which takes a few minutes") })
		say.printProgress(progress)
	})
	if err != nil {
		return err
	}
	sch, err := p.newScheduler()
	if err != nil {
		return err
	}
	server, err := p.newAPI(ctx, version, otherFolder(s.Data))
	if err != nil {
		return err
	}
	say.line("starting the worker")
	quiet := say.watch()
	err = w.Start(ctx)
	quiet()
	if err != nil {
		w.Stop()
		return startError("worker", err)
	}
	running = append(running, w)
	if err := sch.Start(ctx); err != nil {
		return startError("scheduler", err)
	}
	running = append(running, sch)
	if err := server.Start(ctx); err != nil {
		return startError("API", err)
	}
	running = append(running, server)
	downloads, err := p.startDownloads(ctx)
	if err != nil {
		return err
	}
	running = append(running, downloads)
	metrics, err := p.showMetrics(ctx, metricsDefault)
	if err != nil {
		return err
	}
	running = append(running, metrics)
	made, err := p.Store.KeySet(ctx)
	if err != nil {
		return fmt.Errorf("read the API keys: %w", err)
	}
	say.welcome(os.Args[0], otherFolder(s.Data), server.Addr(), len(s.API.Keys)+made.Len() > 0 || s.API.RequireKeys)
	<-ctx.Done()
	return nil
}

// stopNote says what a stop waits for, and for how long at most: the API ends before the worker.
func stopNote(grace time.Duration) string {
	return fmt.Sprintf("stopping: open connections may take %s to end, and then jobs %s; code that still runs continues in its sandbox, and the next start takes it over", api.StopTimeout, grace)
}

// checkPorts reports every address that Up will listen on and another program has, before anything is made. Of a farm that runs on the same data
// directory openData has more to say.
func checkPorts(ctx context.Context, s *Settings) error {
	if Runs(s) {
		return nil
	}
	type setting struct{ name, env, listen string }
	settings := []setting{{"api.listen", "SANDFARM_API_LISTEN", s.API.Listen}}
	if s.S3.Endpoint == "" || s.S3.Listen != "" {
		settings = append(settings, setting{"s3.listen", "SANDFARM_S3_LISTEN", cmp.Or(s.S3.Listen, embedded.S3Listen)})
	}
	if listen := s.Metrics.Listen; listen != "" && listen != metricsNone {
		settings = append(settings, setting{"metrics.listen", "SANDFARM_METRICS_LISTEN", listen})
	}
	var errs []error
	for _, one := range settings {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", one.listen)
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			errs = append(errs, fmt.Errorf("another program listens on %s: stop it, or set %s (%s) to another address", one.listen, one.name, one.env))
		case err != nil:
			errs = append(errs, fmt.Errorf("%s (%s): %w", one.name, one.env, err))
		default:
			_ = listener.Close()
		}
	}
	return errors.Join(errs...)
}

// Down removes the sandboxes and volumes of the farm of this data directory from the engine. Images, records and artifacts
// stay. A directory that no farm has used is an error, and left as it is.
func Down(ctx context.Context, s *Settings, out io.Writer) (err error) {
	if _, err := os.Stat(s.path("farm-id")); errors.Is(err, fs.ErrNotExist) && s.Engine.Namespace == "" && s.Engine.Kind != kindKubernetes {
		return noFarm(s)
	}
	data, err := openData(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	e, _, err := s.workerEngine(data.Namespace, s.Log.logger(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = e.Close() }()
	if err := e.Ping(ctx); err != nil && s.Engine.Kind == kindKubernetes {
		return fmt.Errorf("reach the cluster: %w", err)
	} else if err != nil {
		newConsole(out).line("no Docker engine answers, so there is nothing to remove")
		return nil // there is nothing to remove
	}
	if err := e.RemoveAll(ctx, true); err != nil {
		return fmt.Errorf("remove the sandboxes and volumes from the engine: %w", err)
	}
	newConsole(out).line("removed every sandbox and volume of this farm from the engine")
	return nil
}

// otherFolder is the absolute path of a data directory, or "" for the one that programs use that are started in this folder without settings.
func otherFolder(data string) string {
	given, err := filepath.Abs(data)
	if usual, usualErr := filepath.Abs(".sandfarm"); err != nil || usualErr != nil || given == usual {
		return ""
	}
	return given
}

// spareThreads are the threads for Go code beyond one for each core. A thread that has nothing to run waits for the network. Without one the
// Go runtime looks at the network every 10 ms only, and a short job that waits for Redis and its sandbox several times took five times
// as long on two cores while two other jobs printed without end.
const spareThreads = 2

// addThreads lets the Go runtime use more threads than the machine has cores, unless GOMAXPROCS or a limit of the cgroup says how many.
func addThreads() {
	if n := threads(runtime.GOMAXPROCS(0), runtime.NumCPU(), os.Getenv("GOMAXPROCS")); n != runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(n)
	}
}

// threads is how many threads may run Go code: as many as now if that is by a setting or by a limit of the cgroup, which would stop the
// process until its next period.
func threads(now, cores int, setting string) int {
	if setting != "" || now != cores {
		return now
	}
	return cores + spareThreads
}
