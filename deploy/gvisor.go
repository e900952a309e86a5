package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
)

// How long the engine may take to read its configuration, and how often it is asked meanwhile.
const (
	reloadTimeout = 15 * time.Second
	reloadEvery   = 200 * time.Millisecond
)

// wrapper is the program that is registered. It lies beside runsc and calls it.
//
//go:embed gvisor/sandfarm-runsc
var wrapper []byte

// setup installs gVisor's runtime runsc and registers it in the Docker engine of this machine, which keeps running: the engine reads its
// runtimes again at SIGHUP. What the engine's configuration has beside stays. What is registered is engine.CheckpointRuntime, which lies beside
// runsc and removes what a resume would leave on the host.
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

// runtimeArgs are flags of runsc for sandboxes; none: its defaults.
var runtimeArgs []string

// runtimeEntry is a runtime in the engine's configuration.
type runtimeEntry struct {
	Path string   `json:"path"`
	Args []string `json:"runtimeArgs,omitempty"`
}

// install copies the built program, and the one that is registered, unless they are there.
func (s setup) install() (changed bool, err error) {
	built, err := os.ReadFile(s.built)
	if err != nil {
		return false, fmt.Errorf("read the built runsc: %w", err)
	}
	for path, want := range map[string][]byte{s.runsc(): built, s.registered(): wrapper} {
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, want) {
			continue
		}
		changed = true
		if err := replace(path, want, 0o755); err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// register adds the runtime to the engine's configuration, unless it is there. Everything else in the file stays.
func (s setup) register() (changed bool, err error) {
	before, err := os.ReadFile(s.config)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read the engine's configuration: %w", err)
	}
	after, err := merged(before, s.name, runtimeEntry{Path: s.registered(), Args: runtimeArgs})
	if err != nil {
		return false, fmt.Errorf("%s: %w", s.config, err)
	}
	if after == nil {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(s.config), 0o755); err != nil { //nolint:gosec // as the engine's package makes it
		return false, fmt.Errorf("make the directory of the engine's configuration: %w", err)
	}
	return true, replace(s.config, after, 0o644)
}

// merged is a configuration with a runtime; nil if it has the runtime already. The bare runsc beside the program is replaced by it. Any other program
// of that name is an error: somebody else registered it.
func merged(config []byte, name string, entry runtimeEntry) ([]byte, error) {
	all := map[string]json.RawMessage{}
	if text := bytes.TrimSpace(config); len(text) > 0 {
		if err := json.Unmarshal(text, &all); err != nil {
			return nil, fmt.Errorf("it is not JSON: %w", err)
		}
	}
	runtimes := map[string]json.RawMessage{}
	if text := all["runtimes"]; len(text) > 0 {
		if err := json.Unmarshal(text, &runtimes); err != nil {
			return nil, fmt.Errorf("its runtimes are not an object: %w", err)
		}
	}
	if text, ok := runtimes[name]; ok {
		var have runtimeEntry
		if err := json.Unmarshal(text, &have); err != nil {
			return nil, fmt.Errorf("its runtime %s: %w", name, err)
		}
		if have.Path != entry.Path && have.Path != filepath.Join(filepath.Dir(entry.Path), "runsc") {
			return nil, fmt.Errorf("it has a runtime %s with the program %q: remove the entry, or register this one under another name", name, have.Path)
		}
		if have.Path == entry.Path && slices.Equal(have.Args, entry.Args) {
			return nil, nil
		}
	}
	var err error
	if runtimes[name], err = json.Marshal(entry); err == nil {
		all["runtimes"], err = json.Marshal(runtimes)
	}
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	out, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return append(out, '\n'), nil
}

// replace writes a file in one step, so that no reader sees half of it. An existing file keeps its mode.
func replace(path string, data []byte, mode os.FileMode) error {
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
	}
	return nil
}

// reload makes the engine read its configuration. It keeps running, and so do its containers.
func (s setup) reload() error {
	text, err := os.ReadFile(s.pidFile)
	if err != nil {
		return fmt.Errorf("find the engine's process: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return fmt.Errorf("find the engine's process: %s has %q", s.pidFile, strings.TrimSpace(string(text)))
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil || strings.TrimSpace(string(name)) != "dockerd" {
		return fmt.Errorf("the process %d of %s is not dockerd: start the engine again by hand", pid, s.pidFile)
	}
	if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
		return fmt.Errorf("send SIGHUP to the engine: %w", err)
	}
	return nil
}
