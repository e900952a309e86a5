package service

import (
	"context"
	"io"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

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

// expect reserves an object of known size; -1: its bytes are reserved as they come.
func (c *charge) expect(ctx context.Context, size int64) error {
	if size <= 0 || c.used+size <= c.reserved {
		return nil
	}
	return c.reserve(ctx, c.used+size)
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
