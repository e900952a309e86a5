package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
	"github.com/versity/versitygw/s3api"
)

const (
	// s3StartTimeout bounds binding the port and opening the data folder: both are local.
	s3StartTimeout = 20 * time.Second
	// s3PortAttempts is how often a free port is looked for: another process may take it before the gateway does.
	s3PortAttempts = 5
	// s3MaxParts is the limit of S3 itself.
	s3MaxParts = 10000
	// s3MaxConnections and s3MaxRequests are far more than one machine's sandboxes use.
	s3MaxConnections = 4096
	s3MaxRequests    = 1024
)

// S3Config says where the S3 service keeps its data and where it listens.
type S3Config struct {
	// Dir holds the buckets. Required; made if missing.
	Dir string
	// Listen is host:port. "" means "127.0.0.1:8001"; port 0 picks a free one.
	Listen string
	// AccessKey and SecretKey are the only account. Required.
	AccessKey, SecretKey string
	// Region is what requests must be signed for. "" means "us-east-1".
	Region string
	// Logger tells of starts and failures. nil means slog.Default().
	Logger *slog.Logger
}

// S3 is an S3 service in this process. While it runs, the process's working folder is inside Dir: the library needs
// that, so start it after relative paths were made absolute. There can be one in a process at a time.
type S3 struct {
	endpoint string
	previous string // the working folder to go back to
	cancel   context.CancelFunc
	done     chan struct{}
	close    sync.Once
	err      error // why it ended; read after done
	log      *slog.Logger
}

// StartS3 starts the service and returns when it takes requests. ctx bounds the start only; Close ends the service.
func StartS3(ctx context.Context, cfg S3Config) (*S3, error) {
	cfg.Listen = cmp.Or(cfg.Listen, "127.0.0.1:8001")
	cfg.Region = cmp.Or(cfg.Region, "us-east-1")
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.Dir == "" || cfg.AccessKey == "" || cfg.SecretKey == "" {
		return nil, errors.New("configure S3: folder, access key and secret key are needed")
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("find S3 folder: %w", err)
	}
	cfg.Dir = dir
	host, port, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("parse S3 address: %w", err)
	}
	if port != "0" {
		return startGateway(ctx, cfg, cfg.Listen)
	}
	for range s3PortAttempts {
		var addr string
		if addr, err = freeAddr(ctx, host); err != nil {
			return nil, err
		}
		var s *S3
		if s, err = startGateway(ctx, cfg, addr); err == nil {
			return s, nil
		}
	}
	return nil, err
}

// Endpoint gives the service's URL.
func (s *S3) Endpoint() string { return s.endpoint }

// Done is closed when the service has ended, by Close or by itself.
func (s *S3) Done() <-chan struct{} { return s.done }

// Close ends the service and waits until running requests are over, or ten seconds. It may be called more than once.
func (s *S3) Close() error {
	s.close.Do(func() {
		s.cancel()
		<-s.done
		if err := os.Chdir(s.previous); err != nil {
			s.err = errors.Join(s.err, fmt.Errorf("go back to working folder: %w", err))
		}
	})
	return s.err
}

func startGateway(ctx context.Context, cfg S3Config, addr string) (*S3, error) {
	previous, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("find working folder: %w", err)
	}
	backend, err := openBackend(cfg)
	if err != nil {
		return nil, errors.Join(err, os.Chdir(previous))
	}
	ready := make(chan struct{})
	runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &S3{endpoint: "http://" + addr, previous: previous, cancel: cancel, done: make(chan struct{}), log: cfg.Logger}
	go s.run(runCtx, backend, gatewayConfig(cfg, addr, sync.OnceFunc(func() { close(ready) })))
	timeout := time.NewTimer(s3StartTimeout)
	defer timeout.Stop()
	select {
	case <-ready:
		s.log.InfoContext(ctx, "embedded S3 started", slog.String("endpoint", s.endpoint), slog.String("dir", cfg.Dir))
		return s, nil
	case <-s.done:
		err = cmp.Or(s.err, errors.New("start S3: it ended at once"))
	case <-ctx.Done():
		err = fmt.Errorf("start S3: %w", ctx.Err())
	case <-timeout.C:
		err = fmt.Errorf("start S3: it was not ready within %s", s3StartTimeout)
	}
	// Close repeats the cause where the service ended by itself.
	if closeErr := s.Close(); closeErr != nil && !errors.Is(closeErr, err) {
		err = errors.Join(err, closeErr)
	}
	return nil, err
}

func (s *S3) run(ctx context.Context, backend *posix.Posix, cfg *embedgw.Config) {
	defer close(s.done)
	defer func() {
		if cause := recover(); cause != nil {
			s.err = fmt.Errorf("serve S3: panic: %v", cause)
			s.log.ErrorContext(ctx, "embedded S3 failed", slog.Any("error", s.err))
		}
	}()
	err := embedgw.RunVersityGW(ctx, backend, cfg)
	if ctx.Err() != nil {
		return
	}
	s.err = fmt.Errorf("serve S3: %w", cmp.Or(err, errors.New("it ended by itself")))
	s.log.ErrorContext(ctx, "embedded S3 failed", slog.Any("error", s.err))
}

func gatewayConfig(cfg S3Config, addr string, ready func()) *embedgw.Config {
	return &embedgw.Config{
		RootUserAccess: cfg.AccessKey,
		RootUserSecret: cfg.SecretKey,
		Region:         cfg.Region,
		// Given explicitly, since the library prints a line on stdout when it picks this very one by itself.
		IAMService: auth.NewIAMServiceSingle(auth.Account{
			Access: cfg.AccessKey, Secret: cfg.SecretKey, Role: auth.RoleAdmin,
		}),
		Ports:             []string{addr},
		MaxConnections:    s3MaxConnections,
		MaxRequests:       s3MaxRequests,
		MultipartMaxParts: s3MaxParts,
		Quiet:             true,
		KeepAlive:         true,
		DisableACLs:       true,
		S3Options:         []s3api.Option{s3api.WithOnListen(ready)},
	}
}

// freeAddr finds a port that nobody listens on.
func freeAddr(ctx context.Context, host string) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", fmt.Errorf("find free port: %w", err)
	}
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return "", fmt.Errorf("parse free address: %w", err)
	}
	return net.JoinHostPort(host, port), nil
}
