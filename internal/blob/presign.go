package blob

import (
	"context"
	"net/url"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// DefaultExpiry is the default life of a link; MaxExpiry is the longest that S3 allows.
const (
	DefaultExpiry = 15 * time.Minute
	MaxExpiry     = 7 * 24 * time.Hour
)

// PresignOptions sets the life of a link and the headers of its response; both are covered by the signature.
type PresignOptions struct {
	// Expiry is from a second to MaxExpiry. 0 means DefaultExpiry.
	Expiry time.Duration
	// Filename, ContentType and Inline are as in PutOptions.
	Filename    string
	ContentType string
	Inline      bool
}

// Presign makes a link with which anybody may GET the object until it expires. It makes no request: the object need not exist.
func (s *Store) Presign(ctx context.Context, key string, opts PresignOptions) (string, error) {
	if err := checkKey(key); err != nil {
		return "", err
	}
	if opts.Expiry == 0 {
		opts.Expiry = DefaultExpiry
	}
	if opts.Expiry < time.Second || opts.Expiry > MaxExpiry {
		return "", farm.Invalidf("The life of a link must be between one second and seven days.")
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
