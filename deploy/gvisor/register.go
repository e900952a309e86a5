package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

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
