package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/minio/minio-go/v7"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// errNoBucket is the cause given where the service answers but the bucket was never made.
var errNoBucket = errors.New("find bucket: it does not exist")

// unavailable gives an error of the service its code; what went wrong stays inside.
func unavailable(err error) error {
	return farm.Wrap(err, farm.CodeUnavailable, "The object store does not answer at the moment. Try again later.")
}

// toFarm gives an error of the S3 client its code. The end of the caller's own context keeps its identity.
func toFarm(ctx context.Context, err error, doing string) error {
	if ctxErr := ctx.Err(); ctxErr != nil {
		return fmt.Errorf("%s: %w", doing, ctxErr)
	}
	err = fmt.Errorf("%s: %w", doing, err)
	resp, ok := errors.AsType[minio.ErrorResponse](err)
	if !ok {
		// No answer of the service: refused, cut, stalled, or our own timeout.
		return unavailable(err)
	}
	switch {
	case resp.Code == minio.NoSuchKey:
		return farm.Wrap(err, farm.CodeNotFound, "There is no such object.")
	case resp.Code == minio.NoSuchBucket:
		return unavailable(err)
	case resp.Code == minio.InvalidRange || resp.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return farm.Wrap(err, farm.CodeInvalid, "The object does not have the range of bytes asked for.")
	case resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusTooManyRequests:
		return unavailable(err)
	default:
		return err
	}
}

// isBucketThere tells that another process made the bucket in the meantime.
func isBucketThere(err error) bool {
	code := minio.ToErrorResponse(err).Code
	return code == minio.BucketAlreadyOwnedByYou || code == minio.BucketAlreadyExists
}

// body gives errors in the middle of a download their code.
type body struct {
	ctx context.Context //nolint:containedctx // a reader has no other way to learn of its caller's context
	io.ReadCloser
}

// Read reads on; io.EOF stays what it is.
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
