package farmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Up runs a whole farm in this process until ctx ends: Redis and S3 where none are named, a worker, the scheduler and
// the API. What it does is told on out, a line a step; then how to use it.
func Up(ctx context.Context, s *Settings, version string, out io.Writer) (err error) {
	if err := haveAgent(); err != nil {
		return err
	}
	log := s.Log.logger()
	say := &console{out: out}
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
	w, err := p.newWorker(e, version, p.callback(data.Secret), say.progress)
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
	say.line("starting worker (the sandbox image is built on the first start: a few minutes)")
	if err := w.Start(ctx); err != nil {
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
		(&console{out: out}).line("no Docker engine answers, so nothing of ours runs in one")
		return nil //nolint:nilerr // there is nothing to remove
	}
	if err := e.RemoveAll(ctx, true); err != nil {
		return fmt.Errorf("remove what is left in the engine: %w", err)
	}
	(&console{out: out}).line("removed every sandbox and volume of this farm from the engine")
	return nil
}

// console tells a person what happens.
type console struct {
	mu   sync.Mutex
	out  io.Writer
	last string
	at   time.Time
}

func (c *console) line(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = fmt.Fprintln(c.out, "sandfarm: "+text)
}

// progressEvery keeps a build from filling the screen.
const progressEvery = 500 * time.Millisecond

func (c *console) progress(p farm.Progress) {
	text := strings.TrimSpace(p.Message)
	c.mu.Lock()
	defer c.mu.Unlock()
	if text == "" || text == c.last || time.Since(c.at) < progressEvery {
		return
	}
	c.last, c.at = text, time.Now()
	if p.Total > 0 {
		text = fmt.Sprintf("%s (%.0f of %.0f)", text, p.Done, p.Total)
	}
	if len(text) > 160 {
		text = text[:160] + "…"
	}
	_, _ = fmt.Fprintln(c.out, "  "+strings.ToValidUTF8(text, "?"))
}

func (c *console) welcome(url string, keys bool) {
	header := ""
	if keys {
		header = `, "headers": {"Authorization": "Bearer YOUR_KEY"}`
	}
	c.line("the farm is ready. Ctrl-C stops it; sandboxes, jobs and files stay for the next start.\n")
	_, _ = fmt.Fprintf(c.out, `  API         %[1]s/v1
  docs        %[1]s/docs
  health      %[1]s/readyz
  metrics     %[1]s/metrics
  MCP         %[1]s/mcp

Try it in another terminal:

  bin/sandfarm run examples/plot.py
  curl -s '%[1]s/v1/run?wait=30' -H 'Content-Type: application/json' -d '{"code": "print(6 * 7)"}'

For models, into the configuration of an MCP client (bin/sandfarm mcp config --client claude-code, claude-desktop, cursor
or vscode prints its own form):

  {"mcpServers": {"sandfarm": {"type": "http", "url": "%[1]s/mcp"%[2]s}}}

`, url, header)
}
