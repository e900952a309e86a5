// Package blob stores bytes in an S3 service: artifacts, and staged uploads.
//
// It owns the only use of the S3 client in the program. Memory stays flat however large an object is. A
// transfer may take as long as bytes move. Every error has a farm code: not_found for a missing object, unavailable for a service
// that is down. The package does not know tenants: the caller chooses keys and checks who may read them.
package blob

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Config says which S3 service to use and how.
type Config struct {
	// Endpoint is the URL of the service as this process reaches it, such as "http://127.0.0.1:8001". Required.
	Endpoint string
	// PublicURL is the URL of the same service as callers reach it; presigned links are made for it. "" means Endpoint.
	PublicURL string
	// AccessKey and SecretKey are the credentials. Required.
	AccessKey, SecretKey string
	// Bucket holds all objects. "" means "sandfarm".
	Bucket string
	// Region is what requests are signed for. "" means "us-east-1".
	Region string
	// StallTimeout ends a connection with a pending request on which no byte moves in either direction for this long.
	// 0 means a minute, which gives a server time to assemble a large upload.
	StallTimeout time.Duration
	// Uploads is the budget for the buffers of Put, fair between the tenants in the keys (kind/tenant/…). It must be used for nothing
	// else: who calls Put may hold other memory while it waits for this. nil: without limit.
	Uploads *budget.Budget
	// Callers is the same for the uploads that callers send (PutOptions.Caller), so that no other waits for one that arrives slowly.
	Callers *budget.Budget
	// Tokens says in each link whose it is, for Downloads: of this process or of another one. nil: links say nothing, and Downloads knows none.
	Tokens Tokens
}

func (c Config) withDefaults() Config {
	c.PublicURL = cmp.Or(c.PublicURL, c.Endpoint)
	c.Bucket = cmp.Or(c.Bucket, "sandfarm")
	c.Region = cmp.Or(c.Region, "us-east-1")
	c.StallTimeout = cmp.Or(c.StallTimeout, time.Minute)
	return c
}

func (c Config) validate() error {
	var errs []error
	if _, err := parseEndpoint(c.Endpoint); err != nil {
		errs = append(errs, fmt.Errorf("check endpoint: %w", err))
	}
	if _, err := parseEndpoint(c.PublicURL); err != nil {
		errs = append(errs, fmt.Errorf("check public URL: %w", err))
	}
	if c.AccessKey == "" || c.SecretKey == "" {
		errs = append(errs, errors.New("check credentials: access key and secret key are both needed"))
	}
	if c.StallTimeout < 0 {
		errs = append(errs, errors.New("check stall timeout: it is negative"))
	}
	return errors.Join(errs...)
}

// parseEndpoint takes scheme and host only: S3 signatures cover the path, so a service below a path cannot be used.
func parseEndpoint(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("parse URL: %w", err)
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("parse URL %q: the scheme must be http or https", text)
	case u.Host == "":
		return nil, fmt.Errorf("parse URL %q: no host", text)
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.User != nil:
		return nil, fmt.Errorf("parse URL %q: only scheme, host and port may be given", text)
	}
	return u, nil
}

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
		return unavailable(ErrNoBucket)
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

// maxKey is the longest key that S3 takes, in bytes.
const maxKey = 1024

// checkKey rejects keys that services treat differently: some store a key as a path on a disk.
func checkKey(key string) error {
	switch {
	case key == "":
		return farm.Invalidf("An object needs a key.")
	case len(key) > maxKey:
		return farm.Invalidf("An object's key has at most %d bytes.", maxKey)
	case !utf8.ValidString(key) || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return farm.Invalidf("An object's key is UTF-8 without control characters.")
	}
	for part := range strings.SplitSeq(key, "/") {
		if part == "" || part == "." || part == ".." {
			return farm.Invalidf("An object's key has no empty part, and none that is %q or %q.", ".", "..")
		}
	}
	return nil
}

// hashPiece is how much is hashed at a time. Go does not interrupt a hash in the middle of a Write: one of a whole part takes milliseconds,
// for which a garbage collection that begins holds up every request of the process.
const hashPiece = 64 << 10

// Hash adds all of r to a hash, in pieces.
func Hash(sum hash.Hash, r io.Reader) error {
	// The wrappers hide WriteTo and ReadFrom, which would pass everything at once.
	_, err := io.CopyBuffer(struct{ io.Writer }{sum}, struct{ io.Reader }{r}, make([]byte, hashPiece))
	if err != nil {
		return fmt.Errorf("hash: %w", err)
	}
	return nil
}
