package tools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"time"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/compat"
	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/ports"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

const (
	// fileWait limits one operation on files: a tool call answers within a minute.
	fileWait = 25 * time.Second
	// pageSize and maxListed limit a list of sandboxes.
	pageSize  = 200
	maxListed = 1000
)

// farmOf is the farm as the caller of a request sees it: a key without the scope run starts no work.
func (s *Server) farmOf(ctx context.Context) compat.Farm {
	who := access.CallerOf(ctx)
	view := caller{s: s.Service, tenant: who.Tenant, ports: s.Ports, audit: s.Used}
	if !who.May(farm.ScopeRun) {
		return readOnly{Farm: view, audit: s.Used}
	}
	return view
}

// caller is the Farm of the MCP tools inside the server: the verbs of api/service for one tenant, with the waits of a tool call.
type caller struct {
	s      *service.Service
	tenant string
	ports  *ports.Server // makes links
	audit  audit
}

// audit is Deps.Used.
type audit func(ctx context.Context, sandboxID, process string, status int)

// used says what came of a call that makes no job.
func (a audit) used(ctx context.Context, sandboxID, process string, err error) {
	status := http.StatusOK
	if err != nil {
		status = rest.StatusOf(err)
	}
	a(ctx, sandboxID, process, status)
}

var _ compat.Farm = caller{}

func (f caller) call(wait time.Duration) service.Call {
	return service.Call{Tenant: f.tenant, Wait: wait}
}

func (f caller) CreateSandbox(ctx context.Context, r wire.CreateRequest, wait time.Duration) (wire.Created, error) {
	out, err := f.s.CreateSandbox(ctx, f.call(wait), r)
	if err != nil {
		return wire.Created{Sandbox: wire.Sandbox{ID: out.Job.SandboxID}}, err
	}
	if out.Sandbox == nil {
		return wire.Created{}, fmt.Errorf("create sandbox: job %s has none", out.Job.ID)
	}
	return wire.Created{Sandbox: *out.Sandbox, Job: out.Job}, nil
}

// Sandboxes lists the open sandboxes, but those that close: they would have to be looked for among all that were closed.
func (f caller) Sandboxes(ctx context.Context) ([]wire.Sandbox, error) { return f.Labeled(ctx, nil) }

// Labeled lists the open sandboxes that have all these labels.
func (f caller) Labeled(ctx context.Context, labels map[string]string) ([]wire.Sandbox, error) {
	q := service.SandboxQuery{States: farm.OpenStates(), Labels: labels, Page: store.Page{Limit: pageSize}}
	found := []wire.Sandbox{}
	for {
		page, err := f.s.Sandboxes(ctx, f.tenant, q)
		if err != nil {
			return nil, err
		}
		found = append(found, page.Items...)
		if page.NextCursor == "" || len(found) >= maxListed {
			return found, nil
		}
		q.Page.Cursor = string(page.NextCursor)
	}
}

func (f caller) CloseSandbox(ctx context.Context, id string, wait time.Duration) (wire.Job, error) {
	return job(f.s.CloseSandbox(ctx, f.call(wait), id))
}

func (f caller) Execute(ctx context.Context, id string, r wire.ExecuteRequest, wait time.Duration) (wire.Job, error) {
	return job(f.s.Execute(ctx, f.call(wait), id, r))
}

func (f caller) Command(ctx context.Context, id string, r wire.CommandRequest, wait time.Duration) (wire.Job, error) {
	return job(f.s.Command(ctx, f.call(wait), id, r))
}

func (f caller) Install(ctx context.Context, id string, r wire.PackagesRequest, wait time.Duration) (wire.Job, error) {
	return job(f.s.Install(ctx, f.call(wait), id, r))
}

func (f caller) Restart(ctx context.Context, id, kernel string, wait time.Duration) (wire.Job, error) {
	return job(f.s.Control(ctx, f.call(wait), farm.KindRestart, id, wire.ControlRequest{Context: kernel}))
}

func (f caller) Packages(id string) func(ctx context.Context, manager, name string) (wire.Package, error) {
	return f.s.Packages(f.tenant, id).Package
}

func (f caller) Job(ctx context.Context, id string, wait time.Duration) (wire.Job, error) {
	return job(f.s.Job(ctx, f.tenant, id, wait))
}

func (f caller) Cancel(ctx context.Context, id string) (wire.Job, error) {
	return job(f.s.Cancel(ctx, f.tenant, id, 0))
}

func job(out service.Outcome, err error) (wire.Job, error) { return out.Job, err }

// Events yields a job's events from the first one until its end, or until ctx ends.
func (f caller) Events(ctx context.Context, jobID string) iter.Seq2[wire.Event, error] {
	return follow(ctx, func(ctx context.Context) (*service.Events, error) { return f.s.Events(ctx, f.tenant, jobID, "") })
}

// Files gives one page: it stays charged until the answer is written, as of several only the last would. CodeTooLarge: the paths of the page are so long
// that it ends before limit.
func (f caller) Files(ctx context.Context, id, path string, recursive bool, limit int) ([]wire.FileEntry, error) {
	found, err := f.s.ListFiles(ctx, f.call(fileWait), id, path, recursive, service.FilePage{Limit: min(limit, farm.MaxListedFiles)})
	if err != nil {
		return nil, err
	}
	if found.NextCursor != "" && len(found.Items) < limit {
		return nil, farm.Errorf(farm.CodeTooLarge, "The paths there are too long for one list: list a directory below.")
	}
	return found.Items, nil
}

func (f caller) WriteFile(ctx context.Context, id, path string, content io.Reader, size int64) (wire.FileEntry, error) {
	out, err := f.s.WriteFile(ctx, f.call(fileWait), id, path, content, size)
	switch {
	case err != nil:
		return wire.FileEntry{}, err
	case !out.Done():
		return wire.FileEntry{}, farm.Errorf(farm.CodeUnavailable, "The file is written after other work in the sandbox: job %s.", out.Job.ID)
	case len(out.Entries) == 0:
		return wire.FileEntry{}, fmt.Errorf("write file: job %s has no entry", out.Job.ID)
	}
	return out.Entries[0], nil
}

// ReadFile checks the size first, so that it does not transfer a file that is too large for the answer. What it reads stays charged to the request
// until the answer is written, also if other jobs follow.
func (f caller) ReadFile(ctx context.Context, id, path string, limit int64) (mcp.File, error) {
	entry, err := f.s.StatFile(ctx, f.call(fileWait), id, path)
	switch {
	case err != nil:
		return mcp.File{}, err
	case entry.Type != "file":
		return mcp.File{}, farm.Invalidf("path %q is a %s, not a file.", entry.Path, entry.Type)
	case entry.Size > limit:
		return mcp.File{Entry: entry}, nil
	}
	read, err := f.s.ReadFile(ctx, f.call(fileWait), id, path, service.Range{})
	if err != nil {
		return mcp.File{}, err
	}
	before := budget.Held(ctx)
	content, err := upTo(ctx, read.Content, read.Length, limit)
	if err == nil && content != nil {
		entry.Size = int64(len(content)) // it may have changed since the check
		err = budget.Pin(ctx, budget.Held(ctx)-before)
	}
	if err != nil {
		return mcp.File{}, fmt.Errorf("read file: %w", err)
	}
	return mcp.File{Entry: entry, Content: content}, nil
}

func (f caller) LinkFile(ctx context.Context, id, path string) (string, error) {
	return f.s.LinkFile(ctx, f.call(fileWait), id, path)
}

// Artifact charges the request for what it reads: until its next job begins (budget.Keep), or the answer is written.
func (f caller) Artifact(ctx context.Context, id string, limit int64) (mcp.Artifact, error) {
	shown, content, err := f.s.OpenArtifact(ctx, f.tenant, id, limit)
	if err != nil || content == nil {
		return mcp.Artifact{Artifact: shown}, err
	}
	got, err := upTo(ctx, content, shown.Size, limit)
	if err != nil {
		return mcp.Artifact{}, fmt.Errorf("read artifact: %w", err)
	}
	return mcp.Artifact{Artifact: shown, Content: got}, nil
}

// upTo reads and closes content of size bytes, and charges the request for them first. It returns nil if the content is longer than the limit, or
// than it was said to be.
func upTo(ctx context.Context, content io.ReadCloser, size, limit int64) ([]byte, error) {
	defer func() { _ = content.Close() }() // read errors come with the bytes
	if size > limit {
		return nil, nil
	}
	if err := budget.Charge(ctx, size*budget.BodyWeight); err != nil {
		return nil, err
	}
	return mcp.ReadUpTo(content, size)
}

// tarWait limits the upload of a whole project, which is queued after the running work of its sandbox.
const tarWait = 10 * time.Minute

func (f caller) Sandbox(ctx context.Context, id string) (wire.Sandbox, error) {
	return f.s.Sandbox(ctx, f.tenant, id)
}

func (f caller) WriteTar(ctx context.Context, id, dir string, tar io.Reader, size int64) error {
	return changed(f.s.WriteTar(ctx, f.call(tarWait), id, dir, tar, size))
}

func (f caller) OpenFile(ctx context.Context, id, path string) (io.ReadCloser, int64, error) {
	read, err := f.s.ReadFile(ctx, f.call(fileWait), id, path, service.Range{})
	return read.Content, read.Length, err
}

func (f caller) RemoveFile(ctx context.Context, id, path string) error {
	return changed(f.s.DeleteFile(ctx, f.call(fileWait), id, path))
}

func (f caller) MoveFile(ctx context.Context, id, from, to string) error {
	return changed(f.s.MoveFile(ctx, f.call(fileWait), id, wire.MoveRequest{From: from, To: to}))
}

// changed returns an error for a change of files that is not done.
func changed(out service.Outcome, err error) error {
	if err == nil && !out.Done() {
		return farm.Errorf(farm.CodeUnavailable, "The change waits for other work in the sandbox and is made after it: job %s.", out.Job.ID)
	}
	return err
}

// eventTimeout is how long a reader of events waits before it checks whether the caller is still there.
const eventTimeout = 5 * time.Second

// eventReader reads events as they come. Next gives io.EOF at their end.
type eventReader interface {
	Next(ctx context.Context, timeout time.Duration) ([]wire.Event, error)
	Close()
}

// follow yields the events of a reader until their end, or until ctx ends.
func follow[R eventReader](ctx context.Context, open func(context.Context) (R, error)) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		ctx, memory := budget.Renew(ctx) // the call holds its own, and reads its result meanwhile
		defer memory.Release()
		reader, err := open(ctx)
		if err != nil {
			yield(wire.Event{}, err)
			return
		}
		defer reader.Close()
		for ctx.Err() == nil {
			events, err := reader.Next(ctx, eventTimeout)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(wire.Event{}, err)
				return
			}
			for _, event := range events {
				if !yield(event, nil) {
					return
				}
			}
			memory.Release()
		}
	}
}

func (f caller) StartProcess(ctx context.Context, sandboxID string, r wire.ProcessRequest) (wire.Process, error) {
	p, err := f.s.StartProcess(ctx, f.call(0), sandboxID, r)
	f.audit.used(ctx, sandboxID, p.ID, err)
	return p, err
}

// ProcessEvents yields the output of a process until its exit, or until ctx ends.
func (f caller) ProcessEvents(ctx context.Context, sandboxID, processID, after string) iter.Seq2[wire.Event, error] {
	return follow(ctx, func(ctx context.Context) (*service.ProcessOutput, error) {
		return f.s.ProcessOutput(ctx, f.tenant, sandboxID, processID, after)
	})
}

func (f caller) EndProcess(ctx context.Context, sandboxID, processID string) (wire.Process, error) {
	p, err := f.s.EndProcess(ctx, f.tenant, sandboxID, processID)
	f.audit.used(ctx, sandboxID, processID, err)
	return p, err
}

func (f caller) LinkPort(ctx context.Context, sandboxID string, r wire.PortLinkRequest) (wire.PortLink, error) {
	link, err := f.ports.LinkFor(ctx, f.tenant, sandboxID, r)
	f.audit.used(ctx, sandboxID, "", err)
	return link, err
}

// readOnly is a view of a farm for callers without the scope run: it refuses everything that starts work or changes something.
// Verbs that it does not know are those of the farm, so a new verb of compat.Farm that does more than read belongs here too.
type readOnly struct {
	compat.Farm
	audit audit
}

// refuse is the error of each of its verbs.
func (f readOnly) refuse(ctx context.Context) error {
	f.audit(ctx, "", "", http.StatusForbidden)
	return farm.Errorf(farm.CodeUnauthorized, "This needs an API key with the scope run; yours may only read.")
}

func (f readOnly) CreateSandbox(ctx context.Context, _ wire.CreateRequest, _ time.Duration) (wire.Created, error) {
	return wire.Created{}, f.refuse(ctx)
}

func (f readOnly) CloseSandbox(ctx context.Context, _ string, _ time.Duration) (wire.Job, error) {
	return wire.Job{}, f.refuse(ctx)
}

func (f readOnly) Execute(ctx context.Context, _ string, _ wire.ExecuteRequest, _ time.Duration) (wire.Job, error) {
	return wire.Job{}, f.refuse(ctx)
}

func (f readOnly) Command(ctx context.Context, _ string, _ wire.CommandRequest, _ time.Duration) (wire.Job, error) {
	return wire.Job{}, f.refuse(ctx)
}

func (f readOnly) Install(ctx context.Context, _ string, _ wire.PackagesRequest, _ time.Duration) (wire.Job, error) {
	return wire.Job{}, f.refuse(ctx)
}

func (f readOnly) Restart(ctx context.Context, _ string, _ string, _ time.Duration) (wire.Job, error) {
	return wire.Job{}, f.refuse(ctx)
}

func (f readOnly) Cancel(ctx context.Context, _ string) (wire.Job, error) {
	return wire.Job{}, f.refuse(ctx)
}

func (f readOnly) WriteFile(ctx context.Context, _ string, _ string, _ io.Reader, _ int64) (wire.FileEntry, error) {
	return wire.FileEntry{}, f.refuse(ctx)
}

func (f readOnly) WriteTar(ctx context.Context, _ string, _ string, _ io.Reader, _ int64) error {
	return f.refuse(ctx)
}

func (f readOnly) RemoveFile(ctx context.Context, _ string, _ string) error { return f.refuse(ctx) }

func (f readOnly) MoveFile(ctx context.Context, _ string, _ string, _ string) error {
	return f.refuse(ctx)
}

func (f readOnly) StartProcess(ctx context.Context, _ string, _ wire.ProcessRequest) (wire.Process, error) {
	return wire.Process{}, f.refuse(ctx)
}

func (f readOnly) EndProcess(ctx context.Context, _ string, _ string) (wire.Process, error) {
	return wire.Process{}, f.refuse(ctx)
}

func (f readOnly) LinkPort(ctx context.Context, _ string, _ wire.PortLinkRequest) (wire.PortLink, error) {
	return wire.PortLink{}, f.refuse(ctx)
}
