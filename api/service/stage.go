package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// inlineBytes is the largest file that is part of its job's request; a larger one goes through the object store.
const inlineBytes = 64 << 10

// objectsPerRequest is how many staged objects of a job count as one more of requests_per_minute: each is written, read, sent to the sandbox and removed.
const objectsPerRequest = 20

// dropTimeout bounds the deletion of staged objects, which continues after the caller has left.
const dropTimeout = 10 * time.Second

// stage holds the staged objects of one job until its worker reads them. They count against the tenant's quota max_stored_mb, by farm.StoredBytes, from before
// they are written until they are removed.
type stage struct {
	s      *Service
	job    farm.Ref
	limit  int64 // bytes that the objects may have together
	size   int64 // bytes that they have
	keys   []string
	inline int // bytes that are part of the request
	head   []byte
	charge charge
}

// stage is for a job in a sandbox with a disk of this size.
func (s *Service) stage(job *farm.Job, diskMB int) *stage {
	g := &stage{s: s, job: job.Ref(), limit: int64(diskMB)<<20 + tarSlack}
	g.charge.set = func(ctx context.Context, bytes int64) error { return s.Store.KeepUploads(ctx, g.job, bytes) }
	g.charge.now = s.Now
	return g
}

// tarSlack is how much larger than a disk an upload may be: a tar has headers and an end, and the file in it may still fit.
const tarSlack = 1 << 20

// put stores all of r, at most the farm's limit for a file. size -1: not known.
func (g *stage) put(ctx context.Context, r io.Reader, size int64) (blob.Info, error) {
	if err := g.fits(max(size, 0)); err != nil {
		return blob.Info{}, err
	}
	budget.LeaveCore(ctx)
	if n := len(g.keys); n > 0 && n%objectsPerRequest == 0 {
		if _, err := g.s.More(ctx, g.job.Tenant, 1); err != nil {
			return blob.Info{}, err
		}
	}
	if err := g.charge.object(ctx, size); err != nil {
		return blob.Info{}, g.refuse(err)
	}
	key := fmt.Sprintf("%s%d", farm.StagingOf(g.job), len(g.keys))
	g.keys = append(g.keys, key)
	info, err := g.s.Blobs.Put(ctx, key, &counted{r: r, count: func(n int) error {
		if err := g.fits(int64(n)); err != nil {
			return err
		}
		g.size += int64(n)
		return g.refuse(g.charge.take(ctx, n))
	}}, size, blob.PutOptions{ContentType: "application/octet-stream", Caller: true})
	if err != nil {
		return info, fmt.Errorf("stage upload: %w", err)
	}
	return info, nil
}

// fits refuses what is larger than the sandbox's disk: it could never be written there.
func (g *stage) fits(more int64) error {
	if g.size+more > g.limit {
		return farm.Errorf(farm.CodeTooLarge, "The upload has more than %d MiB, which is the disk of the sandbox (disk_mb).", (g.limit-tarSlack)>>20)
	}
	return nil
}

// refuse counts a refusal by a quota.
func (g *stage) refuse(err error) error {
	if e, ok := errors.AsType[*farm.Error](err); ok && e.Quota != nil {
		g.s.Refused(e.Quota.Name)
	}
	return err
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
	if g.charge.set == nil || g.charge.reserved == 0 && len(g.keys) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	err := g.s.Blobs.Delete(ctx, g.keys...)
	if err == nil {
		err = g.charge.free(ctx)
	}
	if err != nil {
		g.s.Logger.WarnContext(ctx, "staged upload is left to the scheduler", slog.String("job_id", g.job.ID), slog.Any("error", err))
	}
}

// submit is the service's submit; it drops the staged objects if no worker will read them.
func (g *stage) submit(ctx context.Context, c Call, a store.Accept) (Outcome, error) {
	if err := g.charge.settle(ctx); err != nil {
		g.drop(ctx)
		return Outcome{}, err
	}
	out, err := g.s.submit(ctx, c, a) // no part of a is used behind it: it would keep the whole request in memory during the wait
	switch {
	case err == nil && out.Job.ID != g.job.ID:
		g.drop(ctx) // an earlier job answers this call
	case err != nil && out.record == nil && g.refused(ctx):
		g.drop(ctx)
	}
	return out, err
}

// refused reports whether the job was not accepted: an error can also come later, from the wait.
func (g *stage) refused(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	_, err := g.s.Store.Job(ctx, g.job)
	return farm.CodeOf(err) == farm.CodeNotFound
}

// body is a caller's upload: it fails at the limit, and a broken upload is the caller's error.
type body struct {
	r     io.Reader
	left  int64
	limit int64
}

func (s *Service) capped(r io.Reader) *body {
	return &body{r: r, left: s.limits.MaxFileBytes, limit: s.limits.MaxFileBytes}
}

// Read reads and fails with CodeTooLarge at the limit.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, tooLarge(b.limit)
	}
	if err != nil && err != io.EOF { //nolint:errorlint // io.EOF is never wrapped by a Reader
		return n, farm.Wrap(err, farm.CodeInvalid, "the body ended before it was complete")
	}
	return n, err
}

func tooLarge(limit int64) error {
	return farm.Errorf(farm.CodeTooLarge, "the file has more than %d bytes, which is the limit", limit)
}

const (
	// chargeStep is how much an upload of unknown length reserves ahead of what has come.
	chargeStep = 16 << 20
	// chargeEvery is how often a slow upload repeats its reservation, which the store forgets when an API process dies.
	chargeEvery = 10 * time.Minute
)

// charge reserves bytes of a tenant's storage before they are written. The zero value reserves nothing.
type charge struct {
	set      func(ctx context.Context, bytes int64) error // how many bytes are reserved in all
	now      func() time.Time
	used     int64
	reserved int64
	at       time.Time // of the last reservation
}

// object reserves an object of this size, by farm.StoredBytes; -1: its bytes are reserved as they come.
func (c *charge) object(ctx context.Context, size int64) error {
	if size < 0 {
		return c.take(ctx, farm.ObjectBytes)
	}
	if more := c.used + farm.StoredBytes(size); more > c.reserved {
		if err := c.reserve(ctx, more); err != nil {
			return err
		}
	}
	c.used += farm.ObjectBytes
	return nil
}

// take counts bytes that have arrived. Beyond what is reserved it reserves a step more or, near the quota, less.
func (c *charge) take(ctx context.Context, n int) error {
	c.used += int64(n)
	if c.used <= c.reserved {
		if c.now().Sub(c.at) > chargeEvery {
			return c.reserve(ctx, c.reserved)
		}
		return nil
	}
	for step := int64(chargeStep); step >= 1<<20; step /= 4 {
		if err := c.reserve(ctx, c.used+step); farm.CodeOf(err) != farm.CodeExhausted {
			return err
		}
	}
	return c.reserve(ctx, c.used)
}

// settle gives back what was reserved and did not come.
func (c *charge) settle(ctx context.Context) error {
	if c.reserved == c.used {
		return nil
	}
	return c.reserve(ctx, c.used)
}

// free gives everything back.
func (c *charge) free(ctx context.Context) error {
	c.used = 0
	return c.reserve(ctx, 0)
}

func (c *charge) reserve(ctx context.Context, bytes int64) error {
	if err := c.set(ctx, bytes); err != nil {
		return err
	}
	c.reserved, c.at = bytes, c.now()
	return nil
}

// counted is a reader that counts before it passes bytes on.
type counted struct {
	r     io.Reader
	count func(n int) error
}

// Read reads, and fails as count does.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if n > 0 {
		if err := c.count(n); err != nil {
			return 0, err
		}
	}
	return n, err
}
