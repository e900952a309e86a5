// Package inprocess implements the Farm of the MCP tools inside the server: the verbs of api/service for one tenant, with the waits
// of a tool call.
package inprocess

import (
	"context"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/sandfarm/sandfarm/api/compat"
	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
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

// caller is the farm as one tenant sees it.
type caller struct {
	s      *service.Service
	tenant string
	link   Linker
}

var _ compat.Farm = caller{}

// New returns the farm as a tenant sees it.
func New(s *service.Service, tenant string, link Linker) compat.Farm {
	return caller{s: s, tenant: tenant, link: link}
}

func (f caller) call(wait time.Duration) service.Call {
	return service.Call{Tenant: f.tenant, Wait: wait}
}

func (f caller) CreateSandbox(ctx context.Context, r wire.CreateRequest, wait time.Duration) (wire.Created, error) {
	out, err := f.s.CreateSandbox(ctx, f.call(wait), r)
	if err != nil {
		return wire.Created{}, err
	}
	if out.Sandbox == nil {
		return wire.Created{}, fmt.Errorf("create sandbox: job %s has none", out.Job.ID)
	}
	return wire.Created{Sandbox: *out.Sandbox, Job: out.Job}, nil
}

// Sandboxes lists the open sandboxes.
func (f caller) Sandboxes(ctx context.Context) ([]wire.Sandbox, error) { return f.Labeled(ctx, nil) }

// Labeled lists the open sandboxes that have all these labels.
func (f caller) Labeled(ctx context.Context, labels map[string]string) ([]wire.Sandbox, error) {
	q := service.SandboxQuery{Labels: labels, Page: store.Page{Limit: pageSize}}
	for _, state := range farm.SandboxStates() {
		if !state.Final() {
			q.States = append(q.States, string(state))
		}
	}
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

func (f caller) Package(ctx context.Context, id, manager, name string) (wire.Package, error) {
	return f.s.Package(ctx, f.tenant, id, manager, name)
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

func (f caller) Files(ctx context.Context, id, path string, recursive bool, limit int) ([]wire.FileEntry, error) {
	var all []wire.FileEntry
	for after := ""; ; {
		found, err := f.s.ListFiles(ctx, f.call(fileWait), id, path, recursive, service.FilePage{Limit: min(limit-len(all), farm.MaxListedFiles), After: after})
		if err != nil {
			return nil, err
		}
		if all = append(all, found.Items...); found.NextCursor == "" || len(all) >= limit {
			return all, nil
		}
		if after, err = service.FileCursor(string(found.NextCursor)); err != nil {
			return nil, err
		}
	}
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

// ReadFile checks the size first, so that it does not transfer a file that is too large for the answer.
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
	content, err := upTo(read.Content, limit)
	if err != nil {
		return mcp.File{}, fmt.Errorf("read file: %w", err)
	}
	if content != nil {
		entry.Size = int64(len(content)) // it may have changed since the check
	}
	return mcp.File{Entry: entry, Content: content}, nil
}

func (f caller) LinkFile(ctx context.Context, id, path string) (string, error) {
	return f.s.LinkFile(ctx, f.call(fileWait), id, path)
}

func (f caller) Artifact(ctx context.Context, id string, limit int64) (mcp.Artifact, error) {
	shown, content, err := f.s.OpenArtifact(ctx, f.tenant, id, limit)
	if err != nil || content == nil {
		return mcp.Artifact{Artifact: shown}, err
	}
	got, err := upTo(content, limit)
	if err != nil {
		return mcp.Artifact{}, fmt.Errorf("read artifact: %w", err)
	}
	return mcp.Artifact{Artifact: shown, Content: got}, nil
}

// upTo reads and closes content. It returns nil if the content is longer than the limit.
func upTo(content io.ReadCloser, limit int64) ([]byte, error) {
	defer func() { _ = content.Close() }() // read errors come with the bytes
	return mcp.ReadUpTo(content, limit)
}
