package blob

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// smallObject is the size up to which an object of unknown size is sent in one request; one of known size up to partSize.
	// Such a request is sent from memory, so it can be retried.
	smallObject = 1 << 20
	// partSize and partsAtOnce bound the memory of an upload: 24 MiB, or one part where memory is short.
	partSize    = 8 << 20
	partsAtOnce = 3
	// callerPart is the part of a caller's upload, which may be slow: the smallest that S3 takes, so that more of them are buffered at once.
	callerPart = 5 << 20
	// callerTimeout is how long an upload of a caller waits for memory: as long as other requests of the API do.
	callerTimeout = 30 * time.Second
)

// PutOptions has the metadata of an object.
type PutOptions struct {
	// ContentType is its media type. "" and types that a browser would run mean application/octet-stream.
	ContentType string
	// Filename is what a download is called. "" means the last part of the key.
	Filename string
	// Inline lets a browser show the object instead of saving it; it has an effect only for png, jpeg, gif and webp.
	Inline bool
	// Caller says that a caller sends the bytes, as slowly as it likes: its buffers are those of Config.Callers. If none is free in 30 seconds, the
	// error is CodeExhausted.
	Caller bool
}

// part is how many bytes of a large object are buffered at once, and sent in one request.
func (o PutOptions) part() int64 {
	if o.Caller {
		return callerPart
	}
	return partSize
}

// Put stores size bytes of r, or all of r where size is -1. An existing object is replaced once all bytes have arrived.
// A source that ends early is CodeInvalid; an error of r is returned unchanged. The buffers are waited for when the first bytes are there.
func (s *Store) Put(ctx context.Context, key string, r io.Reader, size int64, opts PutOptions) (Info, error) {
	if err := checkKey(key); err != nil {
		return Info{}, err
	}
	if size < -1 {
		return Info{}, farm.Invalidf("An object's size must be 0 or more, or -1 if it is unknown.")
	}
	src := &source{r: r, left: size, sum: sha256.New()}
	head := make([]byte, min(headSize(size), budget.SmallBytes))
	n, err := readFull(src, head)
	if err != nil {
		return Info{}, src.failed(ctx, err)
	}
	var hold *budget.Hold
	if !src.ended() {
		if hold, err = s.buffers(ctx, key, size, opts); err != nil {
			return Info{}, err
		}
		defer hold.Release()
		head = append(head, make([]byte, headSize(size)-int64(n))...)
		more, err := readFull(src, head[n:])
		if err != nil {
			return Info{}, src.failed(ctx, err)
		}
		n += more
	}
	put := s.putOptions(key, opts)
	var up minio.UploadInfo
	if src.ended() {
		up, err = s.client.PutObject(ctx, s.cfg.Bucket, key, bytes.NewReader(head[:n]), int64(n), put)
	} else {
		part := opts.part()
		put.PartSize, put.NumThreads = uint64(part), 1 //nolint:gosec // a constant
		if hold.Grow((partsAtOnce - 1) * part) {
			put.ConcurrentStreamParts, put.NumThreads = true, partsAtOnce
		}
		up, err = s.client.PutObject(ctx, s.cfg.Bucket, key, io.MultiReader(bytes.NewReader(head[:n]), src), -1, put)
	}
	if err != nil {
		return Info{}, src.failed(ctx, err)
	}
	return Info{Key: key, Size: src.read, SHA256: hex.EncodeToString(src.sum.Sum(nil)), ETag: up.ETag}, nil
}

// readFull fills p, or reads to the end.
func readFull(r io.Reader, p []byte) (int, error) {
	n, err := io.ReadFull(r, p)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return n, err
}

// tenantOf is the tenant in a key: kind/tenant/….
func tenantOf(key string) string {
	_, rest, _ := strings.Cut(key, "/")
	tenant, _, _ := strings.Cut(rest, "/")
	return tenant
}

// buffers waits for the memory of an upload of more than budget.SmallBytes: all of a small object, or one part of a larger one.
func (s *Store) buffers(ctx context.Context, key string, size int64, opts PutOptions) (*budget.Hold, error) {
	need := size
	if size < 0 || size > partSize {
		need = opts.part()
	}
	of := s.cfg.Uploads
	if opts.Caller {
		var done context.CancelFunc
		ctx, done = context.WithTimeoutCause(ctx, callerTimeout, errNoBuffer)
		defer done()
		of = s.cfg.Callers
	}
	hold, err := of.Acquire(ctx, tenantOf(key), need)
	if errors.Is(err, errNoBuffer) {
		return nil, farm.Errorf(farm.CodeExhausted, "This server has no memory for another upload now. Send it again later.")
	}
	if err != nil {
		return nil, fmt.Errorf("put object: %w", err)
	}
	return hold, nil
}

var errNoBuffer = errors.New("no memory became free in time")

func (s *Store) putOptions(key string, opts PutOptions) minio.PutObjectOptions {
	kind := safeType(opts.ContentType)
	return minio.PutObjectOptions{
		ContentType:        kind,
		ContentDisposition: disposition(filename(opts.Filename, key), kind, opts.Inline),
		// The content is hashed once, by source; a CRC32C guards each request.
		DisableContentSha256: true,
	}
}

// headSize is how much is read to find out whether one request is enough: one byte more than a small object has.
func headSize(size int64) int64 {
	if size >= 0 && size <= partSize {
		return size
	}
	return smallObject + 1
}

// source counts and hashes the bytes, and distinguishes an early end and an error of the reader from errors of the service.
type source struct {
	r    io.Reader
	left int64 // bytes left, -1 if unknown
	read int64
	sum  hash.Hash
	eof  bool
	err  error // what r failed with
}

// Read reads from r.
func (s *source) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	if s.ended() {
		return 0, io.EOF
	}
	if s.left >= 0 && int64(len(p)) > s.left {
		p = p[:s.left]
	}
	p = p[:min(len(p), hashPiece)]
	n, err := s.r.Read(p)
	s.sum.Write(p[:n])
	s.read += int64(n)
	if s.left >= 0 {
		s.left -= int64(n)
	}
	switch {
	case err == nil:
		return n, nil
	case !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		// Wrapped, since the S3 client treats a bare io.ErrUnexpectedEOF as the end of the data.
		s.err = fmt.Errorf("read the object's bytes: %w", err)
		return n, s.err
	case s.left > 0:
		s.err = farm.Invalidf("The upload ended %d bytes early.", s.left)
		return n, s.err
	default:
		s.eof = true
		return n, io.EOF
	}
}

// ended reports whether all bytes were read.
func (s *source) ended() bool { return s.eof || s.left == 0 }

// failed returns the cause of a failed upload: the source's own error if there is one.
func (s *source) failed(ctx context.Context, err error) error {
	if s.err != nil {
		return s.err
	}
	err = toFarm(ctx, err, "put object")
	if farm.CodeOf(err) == farm.CodeNotFound { // of no object: another server answers at the address
		return unavailable(err)
	}
	return err
}
