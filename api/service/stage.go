package service

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// inlineBytes is the largest file that is part of its job's request; a larger one goes through the object store.
const inlineBytes = 64 << 10

// dropTimeout bounds the deletion of staged objects, which continues after the caller has left.
const dropTimeout = 10 * time.Second

// stage holds the staged objects of one job until its worker reads them.
type stage struct {
	s      *Service
	prefix string
	keys   []string
	inline int // bytes that are part of the request
}

func (s *Service) stage(tenant, jobID string) *stage {
	return &stage{s: s, prefix: fmt.Sprintf("staging/%s/%s/", tenant, jobID)}
}

// put stores all of r, at most the farm's limit for a file. size -1: not known.
func (g *stage) put(ctx context.Context, r io.Reader, size int64) (blob.Info, error) {
	key := fmt.Sprintf("%s%d", g.prefix, len(g.keys))
	g.keys = append(g.keys, key)
	info, err := g.s.Blobs.Put(ctx, key, r, size, blob.PutOptions{ContentType: "application/octet-stream"})
	if err != nil {
		return info, fmt.Errorf("stage upload: %w", err)
	}
	return info, nil
}

// moveToBlobStore stages a file that is too large to be stored in the request.
func (g *stage) moveToBlobStore(ctx context.Context, f *farm.InputFile) error {
	if g.inline+len(f.Content) <= inlineBytes {
		g.inline += len(f.Content)
		return nil
	}
	info, err := g.put(ctx, bytes.NewReader(f.Content), int64(len(f.Content)))
	if err != nil {
		return err
	}
	f.Content, f.Staged = nil, info.Key
	return nil
}

// drop deletes the staged objects: no worker will read them.
func (g *stage) drop(ctx context.Context) {
	if len(g.keys) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	if err := g.s.Blobs.Delete(ctx, g.keys...); err != nil {
		g.s.Logger.WarnContext(ctx, "staged upload is left behind", slog.String("prefix", g.prefix), slog.Any("error", err))
	}
}

// submit is the service's submit; it drops the staged objects if no worker will read them.
func (g *stage) submit(ctx context.Context, c Call, a store.Accept) (Outcome, error) {
	taken := a.Job.ID
	out, err := g.s.submit(ctx, c, a)
	switch {
	case err == nil && out.Job.ID != taken:
		g.drop(ctx) // an earlier job answers this call
	case err != nil && out.record == nil && g.refused(ctx, a.Job):
		g.drop(ctx)
	}
	return out, err
}

// refused reports whether a job was not accepted: an error can also come later, from the wait.
func (g *stage) refused(ctx context.Context, job *farm.Job) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	_, err := g.s.Store.Job(ctx, job.Ref())
	return farm.CodeOf(err) == farm.CodeNotFound
}

// body is a caller's upload: it fails at the limit, and a broken upload is the caller's error.
type body struct {
	r    io.Reader
	left int64
	most int64
}

func (s *Service) capped(r io.Reader) *body {
	return &body{r: r, left: s.limits.MaxFileBytes, most: s.limits.MaxFileBytes}
}

// Read reads and fails with CodeTooLarge at the limit.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, tooLarge(b.most)
	}
	if err != nil && err != io.EOF { //nolint:errorlint // io.EOF is never wrapped by a Reader
		return n, farm.Wrap(err, farm.CodeInvalid, "the body ended before it was complete")
	}
	return n, err //nolint:wrapcheck // nil or io.EOF
}

func tooLarge(most int64) error {
	return farm.Errorf(farm.CodeTooLarge, "the file has more than %d bytes, which is the limit", most)
}
