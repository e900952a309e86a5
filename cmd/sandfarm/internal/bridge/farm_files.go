package bridge

import (
	"context"
	"io"

	"github.com/sandfarm/sandfarm/api/wire"
)

func (r *remote) Sandbox(ctx context.Context, id string) (wire.Sandbox, error) {
	found, err := r.c.Sandbox(ctx, id)
	return found, r.explain(err)
}

func (r *remote) WriteTar(ctx context.Context, id, dir string, tar io.Reader, _ int64) error {
	return r.explain(r.c.Files(id).PutTar(ctx, dir, tar))
}

func (r *remote) OpenFile(ctx context.Context, id, path string) (io.ReadCloser, int64, error) {
	clean, err := cleanFile(path)
	if err != nil {
		return nil, 0, err
	}
	content, err := r.c.Files(id).Open(ctx, clean)
	if err != nil {
		return nil, 0, r.explain(err)
	}
	return content, content.Size, nil
}

func (r *remote) RemoveFile(ctx context.Context, id, path string) error {
	clean, err := cleanFile(path)
	if err != nil {
		return err
	}
	return r.explain(r.c.Files(id).Delete(ctx, clean))
}

func (r *remote) MoveFile(ctx context.Context, id, from, to string) error {
	from, err := cleanFile(from)
	if err != nil {
		return err
	}
	if to, err = cleanFile(to); err != nil {
		return err
	}
	return r.explain(r.c.Files(id).Move(ctx, from, to))
}
