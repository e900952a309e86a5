package inprocess

import (
	"context"
	"io"
	"time"

	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

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
