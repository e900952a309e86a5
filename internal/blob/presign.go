package blob

import (
	"context"
	"net/url"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// DefaultExpiry is how long a link works where nothing else is asked for; MaxExpiry is the most that S3 allows.
const (
	DefaultExpiry = 15 * time.Minute
	MaxExpiry     = 7 * 24 * time.Hour
)

// PresignOptions says how long a link works and how its answer is labelled; the labels are part of the signature.
type PresignOptions struct {
	// Expiry is from a second to MaxExpiry. 0 means DefaultExpiry.
	Expiry time.Duration
	// Filename, ContentType and Inline are as in PutOptions.
	Filename    string
	ContentType string
	Inline      bool
}

// Presign makes a link with which anybody may GET the object until it expires. It asks nobody: the object need not exist.
func (s *Store) Presign(ctx context.Context, key string, opts PresignOptions) (string, error) {
	if err := checkKey(key); err != nil {
		return "", err
	}
	if opts.Expiry == 0 {
		opts.Expiry = DefaultExpiry
	}
	if opts.Expiry < time.Second || opts.Expiry > MaxExpiry {
		return "", farm.Invalidf("A link expires after one second to seven days.")
	}
	kind := safeType(opts.ContentType)
	params := url.Values{
		"response-content-type":        {kind},
		"response-content-disposition": {disposition(filename(opts.Filename, key), kind, opts.Inline)},
	}
	link, err := s.public.PresignedGetObject(ctx, s.cfg.Bucket, key, opts.Expiry, params)
	if err != nil {
		return "", toFarm(ctx, err, "presign object")
	}
	return link.String(), nil
}
