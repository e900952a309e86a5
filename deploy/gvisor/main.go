// Command gvisor installs gVisor's runtime runsc and registers it in the Docker engine of this machine, which keeps running: the engine
// reads its runtimes again at SIGHUP. What the engine's configuration has beside stays. What is registered is engine.CheckpointRuntime, which lies
// beside runsc and removes what a resume would leave on the host. `make gvisor` builds runsc first.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
)

// How long the engine may take to read its configuration, and how often it is asked meanwhile.
const (
	reloadTimeout = 15 * time.Second
	reloadEvery   = 200 * time.Millisecond
)

func main() {
	var s setup
	flag.StringVar(&s.built, "runsc", "", "the built runsc")
	flag.StringVar(&s.dir, "install", "/usr/local/bin", "the directory that it is installed in")
	flag.StringVar(&s.name, "name", "runsc", "name of the runtime")
	flag.StringVar(&s.config, "config", "/etc/docker/daemon.json", "the engine's configuration file")
	flag.StringVar(&s.pidFile, "pidfile", "/var/run/docker.pid", "the engine's file with its process id")
	flag.Parse()
	s.out = os.Stdout
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := s.run(ctx, os.Getenv("DOCKER_HOST")); err != nil {
		fmt.Fprintln(os.Stderr, "gvisor:", err)
		stop()
		os.Exit(1)
	}
}

// wrapper is the program that is registered. It lies beside runsc and calls it.
//
//go:embed sandfarm-runsc
var wrapper []byte

// setup says what is installed and registered, and where.
type setup struct {
	built, dir, name, config, pidFile string
	out                               io.Writer
}

// runsc and registered are the files that are installed.
func (s setup) runsc() string      { return filepath.Join(s.dir, "runsc") }
func (s setup) registered() string { return filepath.Join(s.dir, engine.CheckpointRuntime) }

// run installs and registers the runtime at the engine of an address, which must be one of this machine.
func (s setup) run(ctx context.Context, host string) error {
	if host != "" && !strings.HasPrefix(host, "unix://") {
		return fmt.Errorf("the engine at DOCKER_HOST=%s is on another machine: run `make gvisor` there", host)
	}
	e, err := engine.New(engine.Config{Host: host, Runtime: s.name})
	if err != nil {
		return err
	}
	defer func() { _ = e.Close() }()
	if err := e.Ping(ctx); err != nil {
		return errors.New("no Docker engine answers on this machine: start it (systemctl start docker, or dockerd), and try again")
	}
	changed, err := s.install()
	if err != nil {
		return s.withAdvice(err)
	}
	s.report(changed, "installed "+s.runsc()+" and "+s.registered(), s.runsc()+" and "+s.registered()+" are up to date")
	if changed, err = s.register(); err != nil {
		return s.withAdvice(err)
	}
	s.report(changed, "registered the runtime "+s.name+" in "+s.config, s.config+" has the runtime "+s.name)
	if _, err := e.CheckRuntimes(ctx); changed || err != nil {
		if err := s.reload(); err != nil {
			return s.withAdvice(err)
		}
		if err := await(ctx, e); err != nil {
			return err
		}
	}
	_, _ = fmt.Fprintf(s.out, "the engine has the runtime %s. Set engine.runtime = %q for all sandboxes, or engine.runtimes = [%q] for callers to choose\n"+
		"(docs/operations.md). `sandfarm doctor` runs a container with it.\n", s.name, s.name, s.name)
	return nil
}

func (s setup) report(changed bool, did, was string) {
	text := was
	if changed {
		text = did
	}
	_, _ = fmt.Fprintln(s.out, text)
}

// await waits until the engine has the runtime.
func await(ctx context.Context, e *engine.Engine) error {
	ctx, done := context.WithTimeout(ctx, reloadTimeout)
	defer done()
	for {
		_, err := e.CheckRuntimes(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the engine did not take the runtime within %s: see its log; a dockerd that was started with --add-runtime or --config-file must be started again: %w", reloadTimeout, err)
		case <-time.After(reloadEvery):
		}
	}
}

// withAdvice adds to a refused permission what to do by hand.
func (s setup) withAdvice(err error) error {
	if !errors.Is(err, os.ErrPermission) {
		return err
	}
	return fmt.Errorf("%w\nThis needs root. Run `sudo make gvisor`, or do by hand, as root:\n"+
		"  install -m 755 %s deploy/gvisor/%s %s\n"+
		"  add to %s: %s\n"+
		"  kill -HUP $(cat %s)", err, s.built, engine.CheckpointRuntime, s.dir, s.config, s.entry(), s.pidFile)
}

// entry is what the configuration must have, in one line.
func (s setup) entry() string {
	return fmt.Sprintf(`{"runtimes": {%q: {"path": %q%s}}}`, s.name, s.registered(), argsJSON())
}

func argsJSON() string {
	if len(runtimeArgs) == 0 {
		return ""
	}
	quoted := slices.Clone(runtimeArgs)
	for i, arg := range quoted {
		quoted[i] = fmt.Sprintf("%q", arg)
	}
	return `, "runtimeArgs": [` + strings.Join(quoted, ", ") + "]"
}
