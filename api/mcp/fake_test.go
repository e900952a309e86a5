package mcp_test

import (
	"context"
	"encoding/json"
	"io"
	"iter"
	"sync/atomic"
	"time"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// fakeFarm calls its functions. A function that a test does not set returns not_found.
type fakeFarm struct {
	lookups       atomic.Int32 // how often Packages was called
	CreateFunc    func(ctx context.Context, r wire.CreateRequest, wait time.Duration) (wire.Created, error)
	SandboxesFunc func(ctx context.Context) ([]wire.Sandbox, error)
	CloseFunc     func(ctx context.Context, id string, wait time.Duration) (wire.Job, error)
	ExecuteFunc   func(ctx context.Context, id string, r wire.ExecuteRequest, wait time.Duration) (wire.Job, error)
	CommandFunc   func(ctx context.Context, id string, r wire.CommandRequest, wait time.Duration) (wire.Job, error)
	InstallFunc   func(ctx context.Context, id string, r wire.PackagesRequest, wait time.Duration) (wire.Job, error)
	RestartFunc   func(ctx context.Context, id, kernel string, wait time.Duration) (wire.Job, error)
	PackageFunc   func(ctx context.Context, id, manager, name string) (wire.Package, error)
	JobFunc       func(ctx context.Context, id string, wait time.Duration) (wire.Job, error)
	CancelFunc    func(ctx context.Context, id string) (wire.Job, error)
	EventsFunc    func(ctx context.Context, id string) iter.Seq2[wire.Event, error]
	FilesFunc     func(ctx context.Context, id, path string, recursive bool, limit int) ([]wire.FileEntry, error)
	WriteFunc     func(ctx context.Context, id, path string, content io.Reader, size int64) (wire.FileEntry, error)
	ReadFunc      func(ctx context.Context, id, path string, limit int64) (mcp.File, error)
	LinkFunc      func(ctx context.Context, id, path string) (string, error)
	ArtifactFunc  func(ctx context.Context, id string, limit int64) (mcp.Artifact, error)
	StartFunc     func(ctx context.Context, id string, r wire.ProcessRequest) (wire.Process, error)
	OutputFunc    func(ctx context.Context, id, process, after string) iter.Seq2[wire.Event, error]
	EndFunc       func(ctx context.Context, id, process string) (wire.Process, error)
	LinkPortFunc  func(ctx context.Context, id string, r wire.PortLinkRequest) (wire.PortLink, error)
}

var _ mcp.Farm = (*fakeFarm)(nil)

func none(what, id string) error { return farm.NotFoundf("There is no %s %q.", what, id) }

func (f *fakeFarm) CreateSandbox(ctx context.Context, r wire.CreateRequest, wait time.Duration) (wire.Created, error) {
	if f.CreateFunc == nil {
		return wire.Created{}, none("image", "")
	}
	return f.CreateFunc(ctx, r, wait)
}

func (f *fakeFarm) Sandboxes(ctx context.Context) ([]wire.Sandbox, error) {
	if f.SandboxesFunc == nil {
		return []wire.Sandbox{}, nil
	}
	return f.SandboxesFunc(ctx)
}

func (f *fakeFarm) CloseSandbox(ctx context.Context, id string, wait time.Duration) (wire.Job, error) {
	if f.CloseFunc == nil {
		return wire.Job{}, none("sandbox", id)
	}
	return f.CloseFunc(ctx, id, wait)
}

func (f *fakeFarm) Execute(ctx context.Context, id string, r wire.ExecuteRequest, wait time.Duration) (wire.Job, error) {
	if f.ExecuteFunc == nil {
		return wire.Job{}, none("sandbox", id)
	}
	return f.ExecuteFunc(ctx, id, r, wait)
}

func (f *fakeFarm) Command(ctx context.Context, id string, r wire.CommandRequest, wait time.Duration) (wire.Job, error) {
	if f.CommandFunc == nil {
		return wire.Job{}, none("sandbox", id)
	}
	return f.CommandFunc(ctx, id, r, wait)
}

func (f *fakeFarm) Install(ctx context.Context, id string, r wire.PackagesRequest, wait time.Duration) (wire.Job, error) {
	if f.InstallFunc == nil {
		return wire.Job{}, none("sandbox", id)
	}
	return f.InstallFunc(ctx, id, r, wait)
}

func (f *fakeFarm) Restart(ctx context.Context, id, kernel string, wait time.Duration) (wire.Job, error) {
	if f.RestartFunc == nil {
		return wire.Job{}, none("sandbox", id)
	}
	return f.RestartFunc(ctx, id, kernel, wait)
}

func (f *fakeFarm) Packages(id string) func(ctx context.Context, manager, name string) (wire.Package, error) {
	f.lookups.Add(1)
	return func(ctx context.Context, manager, name string) (wire.Package, error) {
		if f.PackageFunc == nil {
			return wire.Package{}, none("sandbox", id)
		}
		return f.PackageFunc(ctx, id, manager, name)
	}
}

func (f *fakeFarm) Job(ctx context.Context, id string, wait time.Duration) (wire.Job, error) {
	if f.JobFunc == nil {
		return wire.Job{}, none("job", id)
	}
	return f.JobFunc(ctx, id, wait)
}

func (f *fakeFarm) Cancel(ctx context.Context, id string) (wire.Job, error) {
	if f.CancelFunc == nil {
		return wire.Job{}, none("job", id)
	}
	return f.CancelFunc(ctx, id)
}

func (f *fakeFarm) Events(ctx context.Context, id string) iter.Seq2[wire.Event, error] {
	if f.EventsFunc == nil {
		return func(yield func(wire.Event, error) bool) { yield(wire.Event{}, none("job", id)) }
	}
	return f.EventsFunc(ctx, id)
}

func (f *fakeFarm) Files(ctx context.Context, id, path string, recursive bool, limit int) ([]wire.FileEntry, error) {
	if f.FilesFunc == nil {
		return nil, none("sandbox", id)
	}
	return f.FilesFunc(ctx, id, path, recursive, limit)
}

func (f *fakeFarm) WriteFile(ctx context.Context, id, path string, content io.Reader, size int64) (wire.FileEntry, error) {
	if f.WriteFunc == nil {
		return wire.FileEntry{}, none("sandbox", id)
	}
	return f.WriteFunc(ctx, id, path, content, size)
}

func (f *fakeFarm) ReadFile(ctx context.Context, id, path string, limit int64) (mcp.File, error) {
	if f.ReadFunc == nil {
		return mcp.File{}, none("file", path)
	}
	return f.ReadFunc(ctx, id, path, limit)
}

func (f *fakeFarm) LinkFile(ctx context.Context, id, path string) (string, error) {
	if f.LinkFunc == nil {
		return "http://store.test/" + path, nil
	}
	return f.LinkFunc(ctx, id, path)
}

func (f *fakeFarm) Artifact(ctx context.Context, id string, limit int64) (mcp.Artifact, error) {
	if f.ArtifactFunc == nil {
		return mcp.Artifact{}, none("artifact", id)
	}
	return f.ArtifactFunc(ctx, id, limit)
}

func (f *fakeFarm) StartProcess(ctx context.Context, id string, r wire.ProcessRequest) (wire.Process, error) {
	if f.StartFunc == nil {
		return wire.Process{}, none("sandbox", id)
	}
	return f.StartFunc(ctx, id, r)
}

func (f *fakeFarm) ProcessEvents(ctx context.Context, id, process, after string) iter.Seq2[wire.Event, error] {
	if f.OutputFunc == nil {
		return func(yield func(wire.Event, error) bool) {
			yield(wire.Event{}, farm.NotFoundf("The sandbox has no process %q.", process))
		}
	}
	return f.OutputFunc(ctx, id, process, after)
}

func (f *fakeFarm) EndProcess(ctx context.Context, id, process string) (wire.Process, error) {
	if f.EndFunc == nil {
		return wire.Process{}, farm.NotFoundf("The sandbox has no process %q.", process)
	}
	return f.EndFunc(ctx, id, process)
}

func (f *fakeFarm) LinkPort(ctx context.Context, id string, r wire.PortLinkRequest) (wire.PortLink, error) {
	if f.LinkPortFunc == nil {
		return wire.PortLink{}, none("sandbox", id)
	}
	return f.LinkPortFunc(ctx, id, r)
}

// executed makes a farm whose runs end with this job.
func executed(r wire.ExecuteResult) *fakeFarm {
	return &fakeFarm{ExecuteFunc: func(_ context.Context, id string, _ wire.ExecuteRequest, _ time.Duration) (wire.Job, error) {
		return wire.Job{ID: "job_1", Kind: "execute", SandboxID: id, State: "completed", Result: &wire.Result{Execute: &r}}, nil
	}}
}

func event(name string, data any) wire.Event {
	text, err := json.Marshal(data)
	if err != nil {
		panic(err)
	}
	return wire.Event{Name: name, Data: text}
}
