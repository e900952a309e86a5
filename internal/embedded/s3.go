package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/embedded/s3"
	"github.com/sandfarm/sandfarm/internal/httpserver"
)

const (
	s3LockFile = "s3.lock"
	// s3MaxConnections is far more than one machine's sandboxes use. s3FileShare is the part of the files a process may open that
	// connections may use: a request opens one more, and its caller may be in the same process, beside the API's connections.
	s3MaxConnections = 4096
	s3FileShare      = 8
	// s3HeaderTimeout bounds the headers of a request, s3IdleTimeout a connection between two. Content has no limit.
	s3HeaderTimeout = 10 * time.Second
	s3IdleTimeout   = 2 * time.Minute
	s3MaxHeader     = 16 << 10 // S3 has at most 8 KiB of metadata and the like
	// s3CloseTimeout is how long Close waits for running requests.
	s3CloseTimeout = 10 * time.Second
)

// S3Config sets where the S3 service keeps its data and where it listens.
type S3Config struct {
	// Dir holds the buckets. Required; made if missing.
	Dir string
	// Listen is host:port. "" means "127.0.0.1:8001"; port 0 picks a free one.
	Listen string
	// AccessKey and SecretKey are the only account. Required.
	AccessKey, SecretKey string
	// Logger logs starts and failures. nil means slog.Default().
	Logger *slog.Logger
}

// S3 is an S3 service in this process.
type S3 struct {
	server  *httpserver.Server
	handler *s3.Handler
	lock    *os.File
	close   sync.Once
	err     error // of Close
}

// StartS3 starts the service and returns when it accepts requests. ctx bounds the start only; Close ends the service. Starting a
// second service for the same folder fails.
func StartS3(ctx context.Context, cfg S3Config) (*S3, error) {
	cfg.Listen = cmp.Or(cfg.Listen, "127.0.0.1:8001")
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.Dir == "" || cfg.AccessKey == "" || cfg.SecretKey == "" {
		return nil, errors.New("configure S3: folder, access key and secret key are needed")
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start S3: %w", err)
	}
	if _, _, err := net.SplitHostPort(cfg.Listen); err != nil {
		return nil, fmt.Errorf("parse S3 address: %w", err)
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("find S3 folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make S3 folder: %w", err)
	}
	lock, err := lockDir(dir, s3LockFile)
	if err != nil {
		return nil, err
	}
	s, err := startS3Locked(ctx, dir, cfg)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	s.lock = lock
	return s, nil
}

func startS3Locked(ctx context.Context, dir string, cfg S3Config) (*S3, error) {
	handler, err := s3.Open(s3.Config{Dir: dir, AccessKey: cfg.AccessKey, SecretKey: cfg.SecretKey, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	server := httpserver.New(httpserver.Config{
		Name: "embedded S3", Listen: cfg.Listen, MaxConnections: int(min(s3MaxConnections, httpserver.Files()/s3FileShare)), StopTimeout: s3CloseTimeout, Log: cfg.Logger,
		HTTP: &http.Server{Handler: handler, ReadHeaderTimeout: s3HeaderTimeout, IdleTimeout: s3IdleTimeout, MaxHeaderBytes: s3MaxHeader},
	})
	if err := server.Start(ctx); err != nil {
		return nil, errors.Join(err, handler.Close())
	}
	return &S3{server: server, handler: handler}, nil
}

// Endpoint returns the service's URL.
func (s *S3) Endpoint() string { return "http://" + s.server.Addr() }

// Close ends the service: it waits up to ten seconds for running requests, and then aborts them. It may be called more than once.
func (s *S3) Close() error {
	s.close.Do(func() {
		s.server.Stop()
		s.err = errors.Join(s.handler.Close(), s.lock.Close())
	})
	return s.err
}
