package budget

import (
	"bytes"
	"context"
	"errors"
	"io"
)

const (
	// BodyWeight is how often the bytes of a body are in memory at once: as they came, decoded, and encoded for the store, and what the
	// collector has not freed.
	BodyWeight = 4
	// freeBytes of each body are read before it is charged: a caller that sends slowly must not hold memory that others wait for.
	freeBytes = SmallBytes / BodyWeight
)

// ErrTooLong says that a body is longer than its limit.
var ErrTooLong = errors.New("the body is longer than its limit")

// ReadAll reads a body of up to limit bytes, and charges the request (see Charge) with BodyWeight times its length; length is what the
// caller announced, -1 if it is unknown. Errors of r are returned as they are.
func ReadAll(ctx context.Context, r io.Reader, length, limit int64) ([]byte, error) {
	if length > limit {
		return nil, ErrTooLong
	}
	most := limit
	if length >= 0 {
		most = length
	}
	var text bytes.Buffer
	text.Grow(int(min(most, freeBytes) + bytes.MinRead))
	if _, err := text.ReadFrom(io.LimitReader(r, freeBytes)); err != nil {
		return nil, err
	}
	if text.Len() < freeBytes {
		return fits(ctx, &text, limit)
	}
	if err := Charge(ctx, most*BodyWeight); err != nil {
		return nil, err
	}
	if length >= 0 {
		text.Grow(int(length) - text.Len() + bytes.MinRead)
	}
	if _, err := text.ReadFrom(io.LimitReader(r, limit+1-int64(text.Len()))); err != nil {
		return nil, err
	}
	Keep(ctx, int64(text.Len())*BodyWeight)
	if int64(text.Len()) > limit {
		return nil, ErrTooLong
	}
	return text.Bytes(), nil
}

// fits charges a short body, which was read whole.
func fits(ctx context.Context, text *bytes.Buffer, limit int64) ([]byte, error) {
	if int64(text.Len()) > limit {
		return nil, ErrTooLong
	}
	if err := Charge(ctx, int64(text.Len())*BodyWeight); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}
