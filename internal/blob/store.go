package blob

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// controlTimeout bounds one call without object data: a service that takes longer counts as hanging.
const controlTimeout = 10 * time.Second

// pingTimeout bounds Ping: a readiness probe must answer before its own caller gives up.
const pingTimeout = 3 * time.Second

// attempts is how often one request is tried: enough for a broken connection, few enough that a service that is down is
// reported within about a second.
const attempts = 3

// Info describes one object.
type Info struct {
	Key  string
	Size int64 // bytes of the whole object, even if a part was requested
	// SHA256 is the hex digest of the content. Only Put knows it; elsewhere it is "".
	SHA256      string
	ETag        string
	ContentType string    // "" from Put and List
	Modified    time.Time // zero from Put
}

// Store is a client of one bucket. Its methods may be called concurrently.
type Store struct {
	cfg    Config
	client *minio.Client // for this process's own calls
	public *minio.Client // signs links for callers; makes no calls
	answer *answers
}

// New makes a Store. It makes no request: a store made while the service is down works once it is up.
func New(cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure blob store: %w", err)
	}
	transport := &answers{next: newTransport(cfg.StallTimeout)}
	client, err := newClient(cfg.Endpoint, cfg, transport)
	if err != nil {
		return nil, err
	}
	public, err := newClient(cfg.PublicURL, cfg, transport)
	if err != nil {
		return nil, err
	}
	return &Store{cfg: cfg, client: client, public: public, answer: transport}, nil
}

// Silent is how long the service has answered no request; 0 if it answered the last one, or got none.
func (s *Store) Silent() time.Duration { return s.answer.silent() }

// newClient makes an S3 client. With a fixed region it never asks the service, so it can sign offline.
func newClient(endpoint string, cfg Config, transport http.RoundTripper) (*minio.Client, error) {
	u, err := parseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	client, err := minio.New(u.Host, &minio.Options{
		Creds:        credentials.NewStaticV4(cfg.AccessKey, cfg.SecretKey, ""),
		Secure:       u.Scheme == "https",
		Region:       cfg.Region,
		BucketLookup: minio.BucketLookupPath,
		Transport:    transport,
		MaxRetries:   attempts,
		// A CRC32C behind each upload protects it in transit at a fraction of the cost of a signed SHA-256.
		TrailingHeaders: true,
	})
	if err != nil {
		return nil, fmt.Errorf("make S3 client for %s: %w", endpoint, err)
	}
	return client, nil
}

// Ping checks that the bucket exists. CodeUnavailable when the service is down or the bucket is missing, and ErrFull for a minute after it had no
// room for a write of this process, or until it has taken one.
func (s *Store) Ping(ctx context.Context) error {
	callCtx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	found, err := s.client.BucketExists(callCtx, s.cfg.Bucket)
	if err != nil {
		return toFarm(ctx, err, "ping object store")
	}
	if !found {
		return unavailable(errNoBucket)
	}
	if s.answer.isFull() {
		return full(errNoRoom)
	}
	return nil
}

// EnsureBucket creates the bucket if it does not exist.
func (s *Store) EnsureBucket(ctx context.Context) error {
	callCtx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	found, err := s.client.BucketExists(callCtx, s.cfg.Bucket)
	if err != nil {
		return toFarm(ctx, err, "look for bucket")
	}
	if found {
		return nil
	}
	err = s.client.MakeBucket(callCtx, s.cfg.Bucket, minio.MakeBucketOptions{Region: s.cfg.Region})
	if err != nil && !isBucketThere(err) {
		return toFarm(ctx, err, "make bucket")
	}
	return nil
}
