package farmd

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Up runs a whole farm in this process until ctx ends: Redis and S3 where none are named, a worker, the scheduler and
// the API. What it does is told on out, a line a step; then how to use it.
func Up(ctx context.Context, s *Settings, version string, out io.Writer) (err error) {
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

	seen, err := newFigures("up", version)
	if err != nil {
		return err
	}
	e, err := s.observedEngine(data.Namespace, log, seen.engine)
	if err != nil {
		return err
	}
	defer func() { _ = e.Close() }()
	if err := e.Ping(ctx); err != nil {
		return errors.New("no Docker engine answers: start it (systemctl start docker, or run dockerd as root), or use `make run`, which installs and starts one where it may")
	}
	p, err := open(ctx, s, log, seen, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if !p.Persistent {
		say.line("warning: redis-server is not installed; jobs are kept in memory and forgotten on stop (Debian: apt-get install redis-server)")
	}

	var running []stopper // stopped in reverse
	defer func() {
		if len(running) > 0 {
			say.line("stopping: code that runs goes on in its sandbox; the next start picks it up")
		}
		for i := len(running) - 1; i >= 0; i-- {
			running[i].Stop()
		}
	}()
	s.Worker.Alone = true
	w, err := p.newWorker(e, version, p.callback(data.Secret), say.printProgress)
	if err != nil {
		return err
	}
	sch, err := p.newScheduler()
	if err != nil {
		return err
	}
	server, err := p.newAPI(version)
	if err != nil {
		return err
	}
	say.line("starting the worker (the first start builds the sandbox image, which takes a few minutes)")
	quiet := say.watch()
	err = w.Start(ctx)
	quiet()
	if err != nil {
		w.Stop()
		return describe("worker", err)
	}
	running = append(running, w)
	if err := sch.Start(ctx); err != nil {
		return describe("scheduler", err)
	}
	running = append(running, sch)
	if err := server.Start(ctx); err != nil {
		return describe("API", err)
	}
	running = append(running, server)
	metrics, err := p.showMetrics(ctx, metricsDefault)
	if err != nil {
		return err
	}
	running = append(running, metrics)
	say.welcome("http://"+server.Addr(), len(s.API.Keys) > 0)
	<-ctx.Done()
	return nil
}

// Down removes everything of this data directory's farm from the engine: sandboxes and volumes. Images stay, and so do
// records and artifacts.
func Down(ctx context.Context, s *Settings, out io.Writer) (err error) {
	data, err := openData(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	e, err := s.engine(data.Namespace, s.Log.logger())
	if err != nil {
		return err
	}
	defer func() { _ = e.Close() }()
	if err := e.Ping(ctx); err != nil {
		newConsole(out).line("no Docker engine answers, so nothing of ours runs in one")
		return nil //nolint:nilerr // there is nothing to remove
	}
	if err := e.RemoveAll(ctx, true); err != nil {
		return fmt.Errorf("remove what is left in the engine: %w", err)
	}
	newConsole(out).line("removed every sandbox and volume of this farm from the engine")
	return nil
}
