package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/api/compat"
	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// remote is a farm reached over its REST API.
type remote struct {
	c *client.Client
}

var _ compat.Farm = (*remote)(nil)

// NewFarm makes the tools' Farm from a client. Errors carry the farm's codes, and say what to do if no farm answers.
func NewFarm(c *client.Client) compat.Farm { return &remote{c: c} }

func (r *remote) CreateSandbox(ctx context.Context, request wire.CreateRequest, wait time.Duration) (wire.Created, error) {
	made, err := r.c.CreateSandbox(ctx, request, client.WithWait(wait))
	return made, r.explain(err)
}

// Sandboxes lists the open sandboxes, but those that close, as the same tools do over HTTP.
func (r *remote) Sandboxes(ctx context.Context) ([]wire.Sandbox, error) { return r.Labeled(ctx, nil) }

// Labeled lists the open sandboxes that have all these labels.
func (r *remote) Labeled(ctx context.Context, labels map[string]string) ([]wire.Sandbox, error) {
	found := []wire.Sandbox{}
	for one, err := range r.c.Sandboxes(ctx, client.SandboxFilter{State: strings.Join(farm.OpenStates(), ","), Labels: labels}) {
		if err != nil {
			return nil, r.explain(err)
		}
		found = append(found, one)
	}
	return found, nil
}

func (r *remote) CloseSandbox(ctx context.Context, id string, wait time.Duration) (wire.Job, error) {
	job, err := r.c.Close(ctx, id, client.WithWait(wait))
	return job, r.explain(err)
}

func (r *remote) Execute(ctx context.Context, id string, request wire.ExecuteRequest, wait time.Duration) (wire.Job, error) {
	job, err := r.c.Execute(ctx, id, request, client.WithWait(wait))
	return job, r.explain(err)
}

func (r *remote) Command(ctx context.Context, id string, request wire.CommandRequest, wait time.Duration) (wire.Job, error) {
	job, err := r.c.Command(ctx, id, request, client.WithWait(wait))
	return job, r.explain(err)
}

func (r *remote) Install(ctx context.Context, id string, request wire.PackagesRequest, wait time.Duration) (wire.Job, error) {
	job, err := r.c.Install(ctx, id, request, client.WithWait(wait))
	return job, r.explain(err)
}

func (r *remote) Restart(ctx context.Context, id, kernel string, wait time.Duration) (wire.Job, error) {
	opts := []client.CallOption{client.WithWait(wait)}
	if kernel != "" {
		opts = append(opts, client.WithKernel(kernel))
	}
	job, err := r.c.Restart(ctx, id, opts...)
	return job, r.explain(err)
}

func (r *remote) Packages(id string) func(ctx context.Context, manager, name string) (wire.Package, error) {
	return func(ctx context.Context, manager, name string) (wire.Package, error) {
		found, err := r.c.Package(ctx, id, name, client.WithManager(manager))
		return found, r.explain(err)
	}
}

func (r *remote) Job(ctx context.Context, id string, wait time.Duration) (wire.Job, error) {
	job, err := r.c.Job(ctx, id, client.WithWait(wait))
	return job, r.explain(err)
}

func (r *remote) Cancel(ctx context.Context, id string) (wire.Job, error) {
	job, err := r.c.Cancel(ctx, id)
	return job, r.explain(err)
}

func (r *remote) Events(ctx context.Context, jobID string) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		for event, err := range r.c.Events(ctx, jobID, "") {
			if !yield(event, r.explain(err)) {
				return
			}
		}
	}
}

func (r *remote) Files(ctx context.Context, id, path string, recursive bool, limit int) ([]wire.FileEntry, error) {
	found, err := r.c.Files(id).First(ctx, path, recursive, limit)
	return found, r.explain(err)
}

func (r *remote) WriteFile(ctx context.Context, id, path string, content io.Reader, _ int64) (wire.FileEntry, error) {
	clean, err := cleanFile(path)
	if err != nil {
		return wire.FileEntry{}, err
	}
	entry, err := r.c.Files(id).Put(ctx, clean, content)
	return entry, r.explain(err)
}

func (r *remote) ReadFile(ctx context.Context, id, path string, limit int64) (mcp.File, error) {
	clean, err := cleanFile(path)
	if err != nil {
		return mcp.File{}, err
	}
	content, err := r.c.Files(id).Open(ctx, clean)
	if err != nil {
		return mcp.File{}, r.explain(err)
	}
	defer content.Close()
	got := mcp.File{Entry: wire.FileEntry{Path: clean, Size: content.Size, ModifiedAt: content.ModifiedAt, Type: "file"}}
	if got.Content, err = upTo(content, limit); err != nil {
		return mcp.File{}, r.explain(fmt.Errorf("read %s: %w", clean, err))
	}
	if got.Content != nil {
		got.Entry.Size = int64(len(got.Content))
	}
	return got, nil
}

func (r *remote) LinkFile(ctx context.Context, id, path string) (string, error) {
	clean, err := cleanFile(path)
	if err != nil {
		return "", err
	}
	link, err := r.c.Files(id).Link(ctx, clean)
	return link, r.explain(err)
}

func (r *remote) Artifact(ctx context.Context, id string, limit int64) (mcp.Artifact, error) {
	found, err := r.c.Artifact(ctx, id)
	if err != nil {
		return mcp.Artifact{}, r.explain(err)
	}
	got := mcp.Artifact{Artifact: found}
	if found.Size > limit {
		return got, nil
	}
	content, err := r.c.Download(ctx, found)
	if err != nil {
		return mcp.Artifact{}, r.explain(err)
	}
	defer content.Close()
	if got.Content, err = upTo(content, limit); err != nil {
		return mcp.Artifact{}, r.explain(fmt.Errorf("read artifact %s: %w", id, err))
	}
	return got, nil
}

// cleanFile checks a path of the workspace for use in a URL. It refuses absolute paths and "..".
func cleanFile(path string) (string, error) {
	clean, err := farm.CleanFilePath(path)
	if err != nil {
		return "", err
	}
	if strings.HasSuffix(path, "/") {
		return "", farm.Invalidf("path %q names a directory: name a file in it", path)
	}
	return clean, nil
}

// upTo reads content. It returns nil if the content is longer than the limit.
func upTo(content *client.Content, limit int64) ([]byte, error) {
	if content.Size > limit {
		return nil, nil
	}
	return mcp.ReadUpTo(content, limit)
}

// explain converts errors of the client to the domain's: with a code and a sentence that says what to do.
func (r *remote) explain(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	if e, ok := errors.AsType[*client.Error](err); ok {
		return farmError(e, err)
	}
	if down(err) {
		return farm.Wrap(err, farm.CodeUnavailable, "No farm answers at %s. Ask the user to start it with `make run` or `sandfarm up`, or to set SANDFARM_URL to where it runs; then try again.", r.c.URL())
	}
	return farm.Wrap(err, farm.CodeUnavailable, "The connection to the farm at %s broke (%s). Try again; accepted jobs continue.", r.c.URL(), err)
}

// farmError converts an error that the farm answered with.
func farmError(e *client.Error, err error) error {
	message := e.Detail
	if message == "" {
		message = e.Title + "."
	}
	switch {
	case e.Code == string(farm.CodeUnauthorized):
		message = strings.TrimSuffix(message, ".") + ". Ask the user to put a key of the farm into SANDFARM_API_KEY where this server is configured."
	case e.Code == string(farm.CodeInternal):
		// The text of an internal error is normally hidden, but this one was written for callers.
		return farm.Wrap(err, farm.CodeUnavailable, "The farm failed: %s. Its log says more under the request id %s.", strings.TrimSuffix(message, "."), e.RequestID)
	case e.RetryAfter > 0:
		message = fmt.Sprintf("%s. Try again in %s.", strings.TrimSuffix(message, "."), e.RetryAfter)
	}
	return farm.Wrap(err, farm.Code(e.Code), "%s", message)
}

// down reports whether nothing listens at the farm's address.
func down(err error) bool {
	var dns *net.DNSError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) || errors.As(err, &dns)
}

func (r *remote) StartProcess(ctx context.Context, id string, request wire.ProcessRequest) (wire.Process, error) {
	made, err := r.c.StartProcess(ctx, id, request)
	return made, r.explain(err)
}

func (r *remote) ProcessEvents(ctx context.Context, id, process, after string) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		for event, err := range r.c.ProcessEvents(ctx, id, process, after) {
			if !yield(event, r.explain(err)) {
				return
			}
		}
	}
}

func (r *remote) EndProcess(ctx context.Context, id, process string) (wire.Process, error) {
	ended, err := r.c.EndProcess(ctx, id, process)
	return ended, r.explain(err)
}

func (r *remote) LinkPort(ctx context.Context, id string, request wire.PortLinkRequest) (wire.PortLink, error) {
	link, err := r.c.LinkPort(ctx, id, request)
	return link, r.explain(err)
}
