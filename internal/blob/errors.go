package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// ErrNoAnswer says that the object store did not answer, or answered that it cannot serve now. A retry may succeed.
var ErrNoAnswer = errors.New("the object store does not answer")

// ErrFull says that the object store has no room; it is an ErrNoAnswer, too. A retry succeeds only once somebody has made room.
var ErrFull = fmt.Errorf("%w: it is full", ErrNoAnswer)

// ErrNoBucket is the cause if the service responds but the bucket does not exist.
var ErrNoBucket = errors.New("find bucket: it does not exist")

// errNoRoom is the cause if the service responds but has lately refused a write.
var errNoRoom = errors.New("the last write was refused")

// unavailable adds the code to an error of the service; callers do not see the details.
func unavailable(err error) error {
	return farm.Wrap(fmt.Errorf("%w: %w", ErrNoAnswer, err), farm.CodeUnavailable, "The object store does not answer at the moment. Try again later.")
}

func full(err error) error {
	return farm.Wrap(fmt.Errorf("%w: %w", ErrFull, err), farm.CodeUnavailable, "The object store is full. Its operator must make room.")
}

// isFull knows the code of S3 services that have no room, also where it follows a status of success.
func isFull(resp minio.ErrorResponse) bool {
	return resp.StatusCode == http.StatusInsufficientStorage || resp.Code == "StorageFull" || resp.Code == "XMinioStorageFull"
}

// toFarm adds the code to an error of the S3 client. If the caller's context has ended, it returns the context's error.
func toFarm(ctx context.Context, err error, doing string) error {
	if ctxErr := ctx.Err(); ctxErr != nil {
		return fmt.Errorf("%s: %w", doing, ctxErr)
	}
	err = fmt.Errorf("%s: %w", doing, err)
	resp, ok := errors.AsType[minio.ErrorResponse](err)
	if !ok {
		// The service did not respond: refused, reset, stalled, or our own timeout.
		return unavailable(err)
	}
	switch {
	case resp.Code == minio.NoSuchKey:
		return farm.Wrap(err, farm.CodeNotFound, "There is no such object.")
	case resp.Code == minio.NoSuchUpload:
		return farm.Wrap(err, farm.CodeNotFound, "There is no such upload: it was completed or aborted.")
	case resp.Code == minio.NoSuchBucket:
		return unavailable(err)
	case resp.Code == minio.InvalidRange || resp.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return farm.Wrap(err, farm.CodeInvalid, "The object does not have the range of bytes asked for.")
	case isFull(resp):
		return full(err)
	case resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusTooManyRequests:
		return unavailable(err)
	default:
		return err
	}
}

// isBucketThere reports whether another process has created the bucket in the meantime.
func isBucketThere(err error) bool {
	code := minio.ToErrorResponse(err).Code
	return code == minio.BucketAlreadyOwnedByYou || code == minio.BucketAlreadyExists
}

// body adds codes to errors during a download.
type body struct {
	ctx context.Context // a reader has no other way to learn of its caller's context
	io.ReadCloser
}

// Read reads the object; io.EOF is returned unchanged.
func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		return n, toFarm(b.ctx, err, "read object")
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return n, toFarm(b.ctx, err, "read object")
	}
	return n, err
}

// fullFor is how long the store counts as full after it has refused a write for want of room. Whoever stops writing while it is full must try
// again at some time.
const fullFor = time.Minute

// answers notes since when the service answers no request, and whether it has room.
type answers struct {
	next http.RoundTripper

	mu    sync.Mutex
	since time.Time // zero: it answered the last request
	full  time.Time // when it last had no room for a write; zero: it has taken one since
}

// RoundTrip sends a request. An answer that says that the service cannot serve now counts as none; a request that its caller gave up says
// nothing.
func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := a.next.RoundTrip(r)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil && r.Method == http.MethodPut {
		switch {
		case answer.StatusCode == http.StatusInsufficientStorage:
			a.full = time.Now()
		case answer.StatusCode == http.StatusOK:
			a.full = time.Time{}
		}
	}
	switch {
	case err == nil && answer.StatusCode < http.StatusInternalServerError && answer.StatusCode != http.StatusTooManyRequests:
		a.since = time.Time{}
	case err != nil && errors.Is(r.Context().Err(), context.Canceled):
	case a.since.IsZero():
		a.since = time.Now()
	}
	return answer, err
}

func (a *answers) silent() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.since.IsZero() {
		return 0
	}
	return time.Since(a.since)
}

// isFull reports whether the last write of the last minute was refused for want of room.
func (a *answers) isFull() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.full.IsZero() && time.Since(a.full) < fullFor
}
