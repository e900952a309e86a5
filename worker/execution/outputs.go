package execution

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// outputType is the media type of whole outputs.
	outputType = "text/plain; charset=utf-8"
	// minStreamInline is what the result has of each stream at least, once limits.MaxResultInline is used up: head and tail of 16 KiB.
	minStreamInline = 32 << 10
)

// output is the pair of streams of an execute or of one command.
type output struct {
	prefix         string // of the names of its artifacts
	stdout, stderr *sink
}

func (o *output) both() []*sink { return []*sink{o.stdout, o.stderr} }

// sink is a stream whose whole is an artifact when it is longer than the record takes. The artifact is uploaded in parts while the
// stream continues: full parts are in the object store, what follows them is in the spool. Part n is always the same bytes, so that a worker
// that takes over may send it again.
type sink struct {
	*stream
	name    farm.EventName
	path    string // of the artifact
	dropped int64  // bytes that exceeded limits.MaxOutputMB and are kept nowhere

	upload   string         // id; "" before the first part
	parts    int            // that were sent
	sum      hash.Hash      // SHA-256 of what is in parts; nil before the first
	unsent   spool          // after the parts
	artifact *farm.Artifact // of the stream that has ended
	lost     bool           // the storage of the tenant, or this worker, had no room for it
	noRoom   bool           // this worker had none
}

// text returns the stream for the record.
func (s *sink) text() string {
	if s.noRoom {
		return s.stream.text("the worker had no room for the whole output")
	}
	if s.lost {
		return s.stream.text("the storage of your tenant has no room for the whole output")
	}
	if s.dropped > 0 {
		return s.stream.text("what was kept of the output is the artifact " + s.path)
	}
	return s.stream.text("the whole output is the artifact " + s.path)
}

// truncated reports whether the record lacks a part of the stream. Then an artifact has what was kept of it.
func (s *sink) truncated() bool { return s.stream.truncated() || s.dropped > 0 }

// write adds bytes. Those of a stream that the record takes whole are kept once only.
func (s *sink) write(p []byte) {
	before, outgrew := s.stream.write(p)
	if outgrew {
		s.spool(before)
	}
	if s.stream.truncated() {
		s.spool(p)
	}
}

// cut lowers the limit of what is kept for the record.
func (s *sink) cut(limit int) { s.spool(s.stream.cut(limit)) }

// spool adds bytes of a stream that the record cuts to what is to be sent.
func (s *sink) spool(p []byte) {
	if s.lost || s.noRoom || s.unsent.add(p) == nil {
		return
	}
	s.noRoom = true
	s.unsent.close()
}

// remaining is what the store lacks of the stream, and its length.
func (s *sink) remaining() (io.ReadSeeker, int64) {
	if s.stream.truncated() {
		return s.unsent.first(s.unsent.len()), s.unsent.len()
	}
	return bytes.NewReader(s.head), int64(len(s.head))
}

// partFull reports whether a part can be sent.
func (s *sink) partFull() bool { return s.unsent.len() >= blob.PartBytes }

// inlined is what the record has of the stream: as cost counts it, which is at least its bytes.
func (s *sink) inlined() int { return int(min(s.cost, int64(s.limit))) }

// newOutput makes the streams of the next output. What the earlier ones left of limits.MaxResultInline is theirs.
func (c *collector) newOutput(prefix string) *output {
	left := c.limits.MaxResultInline
	for _, o := range c.outputs {
		left -= o.stdout.inlined() + o.stderr.inlined()
	}
	limit := min(c.limits.MaxStreamInline, max(left/2, minStreamInline))
	unsent := spool{room: c.room, tenant: c.job.Tenant}
	return &output{
		prefix: prefix,
		stdout: &sink{stream: newStream(limit), unsent: unsent, name: farm.EventStdout, path: farm.OutputDir + prefix + "stdout.txt"},
		stderr: &sink{stream: newStream(limit), unsent: unsent, name: farm.EventStderr, path: farm.OutputDir + prefix + "stderr.txt"},
	}
}

// commandPrefix begins the names of the artifacts of a command's streams.
func commandPrefix(index int) string { return fmt.Sprintf("%d-", index+1) }

// current returns the streams that frames of output belong to now.
func (c *collector) current() []*sink {
	if len(c.outputs) == 0 {
		return nil
	}
	return c.outputs[len(c.outputs)-1].both()
}

// sendParts sends the full parts of a stream, while the storage of the tenant has room.
func (x *Runner) sendParts(ctx context.Context, e *execution, s *sink) error {
	for s.partFull() {
		_, err := x.reserve(ctx, e, blob.PartBytes)
		if errors.Is(err, errStorageFull) {
			x.giveUp(ctx, e, s)
			return nil
		}
		if err != nil {
			return err
		}
		if err := x.sendPart(ctx, e, s, blob.PartBytes); err != nil {
			return err
		}
	}
	return nil
}

// sendPart sends the next part of a stream, of size bytes, and takes it out of the spool. An upload that is gone was completed by an
// earlier attempt that had seen the whole stream, or was aborted: that is found out when it is completed.
func (x *Runner) sendPart(ctx context.Context, e *execution, s *sink, size int64) error {
	a := x.artifact(e, s.path, outputType)
	err := x.retry(ctx, func(ctx context.Context) (err error) {
		if s.upload == "" {
			if s.upload, err = x.blobs.BeginUpload(ctx, a.Key, putOptions(a)); err != nil {
				return err
			}
		}
		err = x.blobs.PutPart(ctx, a.Key, s.upload, s.parts+1, s.unsent.first(size), size)
		if farm.CodeOf(err) == farm.CodeNotFound {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	if s.sum == nil {
		s.sum = sha256.New()
	}
	if err := blob.Hash(s.sum, s.unsent.first(size)); err != nil {
		return fmt.Errorf("output %s: %w", s.path, err)
	}
	s.parts++
	return s.unsent.drop(size)
}

// storeOutput makes the artifact of a stream that has ended and that the record cuts, if the storage of the tenant has room. It does nothing
// if that is done.
func (x *Runner) storeOutput(ctx context.Context, e *execution, s *sink) error {
	if !s.truncated() || s.artifact != nil || s.lost {
		return nil
	}
	a := x.artifact(e, s.path, outputType)
	err := x.sendTail(ctx, e, s, a)
	if errors.Is(err, errStorageFull) {
		x.giveUp(ctx, e, s)
		return nil
	}
	if err != nil {
		return fmt.Errorf("store %s: %w", s.path, err)
	}
	s.artifact = a
	s.unsent.close()
	return nil
}

// sendTail sends what a stream has after its parts.
func (x *Runner) sendTail(ctx context.Context, e *execution, s *sink, a *farm.Artifact) error {
	if err := x.sendParts(ctx, e, s); err != nil || s.lost {
		return cmp.Or(err, errStorageFull)
	}
	_, rest := s.remaining()
	if _, err := x.reserve(ctx, e, farm.StoredBytes(rest)); err != nil {
		return err
	}
	if s.upload == "" {
		return x.retry(ctx, func(ctx context.Context) error {
			data, size := s.remaining()
			return x.put(ctx, a, data, size)
		})
	}
	if rest > 0 {
		if err := x.sendPart(ctx, e, s, rest); err != nil {
			return err
		}
	}
	err := x.retry(ctx, func(ctx context.Context) error { return x.blobs.CompleteUpload(ctx, a.Key, s.upload, s.total) })
	x.metrics.stored(s.total, err)
	if err != nil {
		return err
	}
	a.Size, a.SHA256 = s.total, hex.EncodeToString(s.sum.Sum(nil))
	return nil
}
