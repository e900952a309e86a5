package mcp

import (
	"context"
	"io"
	"iter"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
)

// Farm has the verbs of /v1 for one caller. In the server it is implemented by api/service, in the stdio bridge by the REST client.
// Errors carry the farm's codes and the sentence that /v1 answers with. A wait of zero does not wait; a call that waits returns
// the state at the end of the wait.
type Farm interface {
	CreateSandbox(ctx context.Context, r wire.CreateRequest, wait time.Duration) (wire.Created, error)
	Sandboxes(ctx context.Context) ([]wire.Sandbox, error) // open ones, newest first
	CloseSandbox(ctx context.Context, id string, wait time.Duration) (wire.Job, error)

	Execute(ctx context.Context, sandboxID string, r wire.ExecuteRequest, wait time.Duration) (wire.Job, error)
	Command(ctx context.Context, sandboxID string, r wire.CommandRequest, wait time.Duration) (wire.Job, error)
	Install(ctx context.Context, sandboxID string, r wire.PackagesRequest, wait time.Duration) (wire.Job, error)
	Restart(ctx context.Context, sandboxID, kernel string, wait time.Duration) (wire.Job, error)
	Package(ctx context.Context, sandboxID, manager, name string) (wire.Package, error) // manager is pip or npm

	Job(ctx context.Context, id string, wait time.Duration) (wire.Job, error)
	Cancel(ctx context.Context, id string) (wire.Job, error)
	Events(ctx context.Context, jobID string) iter.Seq2[wire.Event, error] // from the first to the final state

	Files(ctx context.Context, sandboxID, path string, recursive bool, limit int) ([]wire.FileEntry, error) // the first of them, up to limit
	WriteFile(ctx context.Context, sandboxID, path string, content io.Reader, size int64) (wire.FileEntry, error)
	ReadFile(ctx context.Context, sandboxID, path string, limit int64) (File, error)
	LinkFile(ctx context.Context, sandboxID, path string) (url string, err error)
	Artifact(ctx context.Context, id string, limit int64) (Artifact, error)

	StartProcess(ctx context.Context, sandboxID string, r wire.ProcessRequest) (wire.Process, error)
	// ProcessEvents yields the output of a process after the event with the id after ("" is the first that is kept), until its exit.
	ProcessEvents(ctx context.Context, sandboxID, processID, after string) iter.Seq2[wire.Event, error]
	EndProcess(ctx context.Context, sandboxID, processID string) (wire.Process, error)
	LinkPort(ctx context.Context, sandboxID string, r wire.PortLinkRequest) (wire.PortLink, error)
}

// ReadUpTo reads content for File and Artifact. It returns nil if the content is longer than the limit.
func ReadUpTo(content io.Reader, limit int64) ([]byte, error) {
	got, err := io.ReadAll(io.LimitReader(content, limit+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(got)) > limit:
		return nil, nil
	case got == nil:
		return []byte{}, nil
	}
	return got, nil
}

// File is a file of a workspace. Content is nil if it is longer than the reader's limit.
type File struct {
	Entry   wire.FileEntry
	Content []byte
}

// Artifact is an artifact with a fresh link. Content is nil if it is longer than the reader's limit.
type Artifact struct {
	wire.Artifact
	Content []byte
}
