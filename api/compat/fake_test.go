package compat_test

import (
	"context"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/compat"
	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// fakeFarm keeps sandboxes and files in memory and calls its functions for the rest. A function that a test does not set
// returns not_found. It is safe for concurrent use.
type fakeFarm struct {
	ExecuteFunc func(ctx context.Context, r wire.ExecuteRequest) wire.Job
	CommandFunc func(ctx context.Context, r wire.CommandRequest) wire.Job
	InstallFunc func(ctx context.Context, r wire.PackagesRequest) (wire.Job, error)
	PackageFunc func(name string) (wire.Package, error)
	JobFunc     func(ctx context.Context, id string, wait time.Duration) (wire.Job, error)

	ArtifactFunc func(id string, limit int64) (mcp.Artifact, error)

	mu       sync.Mutex
	boxes    []wire.Sandbox // newest first
	files    map[string]string
	canceled []string
}

var _ compat.Farm = (*fakeFarm)(nil)

// toolsetNamed makes the toolset of one system.
func toolsetNamed(name string) *compat.Toolset {
	all := compat.Toolsets()
	return all[slices.IndexFunc(all, func(set *compat.Toolset) bool { return set.Name == name })]
}

// completed returns a completed job.
func completed(r *wire.Result) wire.Job {
	now := time.Now()
	return wire.Job{ID: farm.NewID(farm.JobPrefix), State: "completed", CreatedAt: now, FinishedAt: &now, Result: r}
}

// Written returns the written files, by path.
func (f *fakeFarm) Written() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]string{}
	for name, content := range f.files {
		out[name] = content
	}
	return out
}

// Canceled returns the canceled jobs.
func (f *fakeFarm) Canceled() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.canceled)
}

// known returns an error if a sandbox does not exist or has ended.
func (f *fakeFarm) known(id string) error {
	box, err := f.Sandbox(context.Background(), id) //nolint:forbidigo // it looks into a list
	if err == nil && farm.SandboxState(box.State).Final() {
		return farm.Conflictf("Sandbox %s is %s and accepts no more work.", id, box.State)
	}
	return err
}

// CreateSandbox creates a sandbox that is ready.
func (f *fakeFarm) CreateSandbox(_ context.Context, r wire.CreateRequest, _ time.Duration) (wire.Created, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	box := wire.Sandbox{
		ID: farm.NewID(farm.SandboxPrefix), Name: r.Name, State: string(farm.SandboxReady), Image: "python", Labels: r.Labels,
		CreatedAt: time.Now(), LastUsedAt: time.Now(), Resources: wire.Resources{CPUs: 2},
	}
	if r.IdleSeconds != nil {
		box.IdleSeconds = *r.IdleSeconds
	}
	f.boxes = slices.Insert(f.boxes, 0, box)
	job := completed(nil)
	return wire.Created{Sandbox: box, Job: job}, nil
}

// Sandboxes lists the sandboxes.
func (f *fakeFarm) Sandboxes(ctx context.Context) ([]wire.Sandbox, error) { return f.Labeled(ctx, nil) }

// Labeled lists the sandboxes that have all these labels.
func (f *fakeFarm) Labeled(_ context.Context, labels map[string]string) ([]wire.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []wire.Sandbox{}
	for _, box := range f.boxes {
		ok := true
		for key, value := range labels {
			ok = ok && box.Labels[key] == value
		}
		if ok {
			out = append(out, box)
		}
	}
	return out, nil
}

// Sandbox returns a sandbox.
func (f *fakeFarm) Sandbox(_ context.Context, id string) (wire.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, box := range f.boxes {
		if box.ID == id {
			return box, nil
		}
	}
	return wire.Sandbox{}, farm.NotFoundf("There is no sandbox %q.", id)
}

// CloseSandbox removes a sandbox.
func (f *fakeFarm) CloseSandbox(_ context.Context, id string, _ time.Duration) (wire.Job, error) {
	if err := f.known(id); err != nil {
		return wire.Job{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.boxes = slices.DeleteFunc(f.boxes, func(box wire.Sandbox) bool { return box.ID == id })
	return completed(nil), nil
}

// Over adds a closed sandbox whose record can still be read.
func (f *fakeFarm) Over(t *testing.T) wire.Sandbox {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	box := wire.Sandbox{ID: farm.NewID(farm.SandboxPrefix), State: string(farm.SandboxClosed)}
	f.boxes = append(f.boxes, box)
	return box
}

// Execute runs ExecuteFunc.
func (f *fakeFarm) Execute(ctx context.Context, id string, r wire.ExecuteRequest, _ time.Duration) (wire.Job, error) {
	if err := f.known(id); err != nil {
		return wire.Job{}, err
	}
	return f.ExecuteFunc(ctx, r), nil
}

// Command runs CommandFunc.
func (f *fakeFarm) Command(ctx context.Context, id string, r wire.CommandRequest, _ time.Duration) (wire.Job, error) {
	if err := f.known(id); err != nil {
		return wire.Job{}, err
	}
	return f.CommandFunc(ctx, r), nil
}

// Install runs InstallFunc.
func (f *fakeFarm) Install(ctx context.Context, id string, r wire.PackagesRequest, _ time.Duration) (wire.Job, error) {
	if err := f.known(id); err != nil {
		for _, name := range r.Packages {
			if _, ok := farm.RequirementName(farm.ManagerPip, name); !ok { // the farm checks the names first
				return wire.Job{}, farm.Invalidf("packages[0] is %q: give a name", name)
			}
		}
		return wire.Job{}, err
	}
	return f.InstallFunc(ctx, r)
}

// Restart does nothing.
func (f *fakeFarm) Restart(_ context.Context, id, _ string, _ time.Duration) (wire.Job, error) {
	return completed(nil), f.known(id)
}

// Packages looks up with PackageFunc.
func (f *fakeFarm) Packages(id string) func(ctx context.Context, _, name string) (wire.Package, error) {
	return func(ctx context.Context, _, name string) (wire.Package, error) {
		if _, err := f.Sandbox(ctx, id); err != nil {
			return wire.Package{}, err
		}
		if f.PackageFunc == nil {
			return wire.Package{Name: name, Status: "not_found"}, nil
		}
		return f.PackageFunc(name)
	}
}

// Job runs JobFunc. Without one, every job is completed.
func (f *fakeFarm) Job(ctx context.Context, id string, wait time.Duration) (wire.Job, error) {
	if f.JobFunc == nil {
		job := completed(nil)
		job.ID = id
		return job, nil
	}
	return f.JobFunc(ctx, id, wait)
}

// Cancel records that a job is canceled.
func (f *fakeFarm) Cancel(_ context.Context, id string) (wire.Job, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.canceled = append(f.canceled, id)
	return wire.Job{ID: id, State: "canceled"}, nil
}

// Events yields nothing.
func (f *fakeFarm) Events(context.Context, string) iter.Seq2[wire.Event, error] {
	return func(func(wire.Event, error) bool) {}
}

// Files lists nothing.
func (f *fakeFarm) Files(_ context.Context, id, _ string, _ bool, _ int) ([]wire.FileEntry, error) {
	return nil, f.known(id)
}

// WriteFile keeps a file.
func (f *fakeFarm) WriteFile(_ context.Context, id, path string, content io.Reader, _ int64) (wire.FileEntry, error) {
	if err := f.known(id); err != nil {
		return wire.FileEntry{}, err
	}
	clean, err := farm.CleanFilePath(path)
	if err != nil {
		return wire.FileEntry{}, err
	}
	text, err := io.ReadAll(content)
	if err != nil {
		return wire.FileEntry{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.files == nil {
		f.files = map[string]string{}
	}
	f.files[clean] = string(text)
	return wire.FileEntry{Path: clean, Size: int64(len(text)), Type: "file"}, nil
}

// ReadFile returns the whole content of a written file.
func (f *fakeFarm) ReadFile(_ context.Context, _, path string, _ int64) (mcp.File, error) {
	text, err := f.file(path)
	return mcp.File{Entry: wire.FileEntry{Path: path, Size: int64(len(text)), Type: "file"}, Content: []byte(text)}, err
}

func (f *fakeFarm) file(path string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	text, ok := f.files[path]
	if !ok {
		return "", farm.NotFoundf("There is no file %q.", path)
	}
	return text, nil
}

// OpenFile finds nothing.
func (f *fakeFarm) OpenFile(_ context.Context, _, path string) (io.ReadCloser, int64, error) {
	return nil, 0, farm.NotFoundf("There is no file %q.", path)
}

// LinkFile returns a dummy URL for a written file.
func (f *fakeFarm) LinkFile(_ context.Context, _, path string) (string, error) {
	_, err := f.file(path)
	return "http://farm.invalid/" + path, err
}

// Artifact finds nothing, unless a test sets its function.
func (f *fakeFarm) Artifact(_ context.Context, id string, limit int64) (mcp.Artifact, error) {
	if f.ArtifactFunc != nil {
		return f.ArtifactFunc(id, limit)
	}
	return mcp.Artifact{}, farm.NotFoundf("There is no artifact %q.", id)
}

// WriteTar does nothing.
func (f *fakeFarm) WriteTar(_ context.Context, id, _ string, _ io.Reader, _ int64) error {
	return f.known(id)
}

// RemoveFile removes a written file, or the written files of a directory.
func (f *fakeFarm) RemoveFile(_ context.Context, id, path string) error {
	f.mu.Lock()
	maps.DeleteFunc(f.files, func(name, _ string) bool { return name == path || strings.HasPrefix(name, path+"/") })
	f.mu.Unlock()
	return f.known(id)
}

// MoveFile does nothing.
func (f *fakeFarm) MoveFile(_ context.Context, id, _, _ string) error { return f.known(id) }

// errNoProcess is the answer about processes and ports, which no toolset uses.
func errNoProcess(id string) error { return farm.NotFoundf("The sandbox has no process %q.", id) }

// StartProcess starts nothing.
func (f *fakeFarm) StartProcess(context.Context, string, wire.ProcessRequest) (wire.Process, error) {
	return wire.Process{}, errNoProcess("")
}

// ProcessEvents yields an error.
func (f *fakeFarm) ProcessEvents(_ context.Context, _, id, _ string) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) { yield(wire.Event{}, errNoProcess(id)) }
}

// EndProcess ends nothing.
func (f *fakeFarm) EndProcess(_ context.Context, _, id string) (wire.Process, error) {
	return wire.Process{}, errNoProcess(id)
}

// LinkPort makes no link.
func (f *fakeFarm) LinkPort(context.Context, string, wire.PortLinkRequest) (wire.PortLink, error) {
	return wire.PortLink{}, errNoProcess("")
}
