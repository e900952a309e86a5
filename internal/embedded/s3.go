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

	"golang.org/x/net/netutil"

	"github.com/sandfarm/sandfarm/internal/embedded/s3"
)

const (
	s3LockFile = "s3.lock"
	// s3MaxConnections is far more than one machine's sandboxes use, and fewer than the files a process may open.
	s3MaxConnections = 4096
	// s3HeaderTimeout bounds the headers of a request, s3IdleTimeout a connection between two. Content takes its time.
	s3HeaderTimeout = 10 * time.Second
	s3IdleTimeout   = 2 * time.Minute
	// s3CloseTimeout is how long Close waits for requests that run.
	s3CloseTimeout = 10 * time.Second
)

// S3Config says where the S3 service keeps its data and where it listens.
type S3Config struct {
	// Dir holds the buckets. Required; made if missing.
	Dir string
	// Listen is host:port. "" means "127.0.0.1:8001"; port 0 picks a free one.
	Listen string
	// AccessKey and SecretKey are the only account. Required.
	AccessKey, SecretKey string
	// Logger gets starts and failures. nil means slog.Default().
	Logger *slog.Logger
}

// S3 is an S3 service in this process.
type S3 struct {
	endpoint string
	server   *http.Server
	handler  *s3.Handler
	lock     *os.File
	done     chan struct{}
	close    sync.Once
	err      error // why it ended; read after done
	log      *slog.Logger
}

// StartS3 starts the service and returns when it takes requests. ctx bounds the start only; Close ends the service. A second
// service for a folder that is in use fails.
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
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("start S3: %w", err)
	}
	handler, err := s3.Open(s3.Config{Dir: dir, AccessKey: cfg.AccessKey, SecretKey: cfg.SecretKey, Logger: cfg.Logger})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s := &S3{
		endpoint: "http://" + l.Addr().String(), handler: handler, done: make(chan struct{}), log: cfg.Logger,
		server: &http.Server{
			Handler: handler, ReadHeaderTimeout: s3HeaderTimeout, IdleTimeout: s3IdleTimeout,
			ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
		},
	}
	go s.serve(context.WithoutCancel(ctx), netutil.LimitListener(l, s3MaxConnections))
	s.log.InfoContext(ctx, "embedded S3 started", slog.String("endpoint", s.endpoint), slog.String("dir", dir))
	return s, nil
}

func (s *S3) serve(ctx context.Context, l net.Listener) {
	defer close(s.done)
	if err := s.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		s.err = fmt.Errorf("serve S3: %w", err)
		s.log.ErrorContext(ctx, "embedded S3 failed", slog.Any("error", s.err))
	}
}

// Endpoint gives the service's URL.
func (s *S3) Endpoint() string { return s.endpoint }

// Done is closed when the service has ended, by Close or by itself.
func (s *S3) Done() <-chan struct{} { return s.done }

// Close ends the service: it waits up to ten seconds for requests that run, and cuts those that still do. It may be called more
// than once.
func (s *S3) Close() error {
	s.close.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), s3CloseTimeout)
		defer cancel()
		if err := s.server.Shutdown(ctx); err != nil {
			_ = s.server.Close()
		}
		<-s.done
		s.err = errors.Join(s.err, s.handler.Close(), s.lock.Close())
	})
	return s.err
}
