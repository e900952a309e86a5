// Package embedded runs what the farm needs beside it: an S3 service in this process, and a Redis server as a child.
//
// It is for one machine: `sandfarm up` starts both and keeps their data in one folder, so jobs and artifacts survive a restart. A
// larger farm uses external services and does not use this package.
package embedded

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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
	// s3MaxConnections is far more than one machine's workers use. s3FileShare is the part of the files a process may open that
	// connections may use: a request opens one more, and its caller may be in the same process, beside the API's connections.
	s3MaxConnections = 1024
	s3FileShare      = 8
	// s3HeaderTimeout bounds the headers of a request, s3IdleTimeout a connection between two. Content has no limit.
	s3HeaderTimeout = 10 * time.Second
	s3IdleTimeout   = 2 * time.Minute
	s3MaxHeader     = 16 << 10 // S3 has at most 8 KiB of metadata and the like
	// s3CloseTimeout is how long Close waits for running requests.
	s3CloseTimeout = 10 * time.Second
)

// S3Listen is where the service listens by default.
const S3Listen = "127.0.0.1:8001"

// S3Config sets where the S3 service keeps its data and where it listens.
type S3Config struct {
	// Dir holds the buckets. Required; made if missing.
	Dir string
	// Listen is host:port. "" means S3Listen; port 0 picks a free one.
	Listen string
	// AccessKey and SecretKey are the only account. Required.
	AccessKey, SecretKey string
	// Link is that of s3.Config.
	Link func(w http.ResponseWriter, r *http.Request, key string) (leave func(), ok bool)
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
	cfg.Listen = cmp.Or(cfg.Listen, S3Listen)
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
	handler, err := s3.Open(s3.Config{Dir: dir, AccessKey: cfg.AccessKey, SecretKey: cfg.SecretKey, Link: cfg.Link, Logger: cfg.Logger})
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

// credentialsFile holds the keys of the embedded S3 service in the data folder.
const credentialsFile = "s3-credentials.json"

type credentials struct {
	AccessKey string `json:"access_key"`
	SecretKey string `json:"secret_key"`
}

// LoadOrCreateCredentials returns the S3 keys stored in dir. If there are none it creates random ones, readable by the owner only.
func LoadOrCreateCredentials(dir string) (access, secret string, err error) {
	file := filepath.Join(dir, credentialsFile)
	c, err := loadCredentials(file)
	if errors.Is(err, fs.ErrNotExist) {
		c, err = createCredentials(dir, file)
	}
	if err != nil {
		return "", "", err
	}
	return c.AccessKey, c.SecretKey, nil
}

func loadCredentials(file string) (credentials, error) {
	info, err := os.Stat(file)
	if err != nil {
		return credentials{}, fmt.Errorf("stat credentials: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return credentials{}, fmt.Errorf("check credentials: others may read %s; delete it to get new ones, or set its mode to 0600", file)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return credentials{}, fmt.Errorf("read credentials: %w", err)
	}
	var c credentials
	if err := json.Unmarshal(text, &c); err != nil {
		return credentials{}, fmt.Errorf("decode credentials in %s: %w", file, err)
	}
	if c.AccessKey == "" || c.SecretKey == "" {
		return credentials{}, fmt.Errorf("check credentials: %s lacks a key", file)
	}
	return c, nil
}

// createCredentials writes a complete file and then links it into place: if two processes do this at once, one wins and both
// use its keys.
func createCredentials(dir, file string) (credentials, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return credentials{}, fmt.Errorf("make data folder: %w", err)
	}
	text, err := json.Marshal(credentials{AccessKey: "sf" + rand.Text()[:18], SecretKey: rand.Text() + rand.Text()})
	if err != nil {
		return credentials{}, fmt.Errorf("encode credentials: %w", err)
	}
	tmp, err := os.CreateTemp(dir, ".credentials-*") // made with mode 0600
	if err != nil {
		return credentials{}, fmt.Errorf("create credentials: %w", err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = tmp.Write(append(text, '\n'))
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return credentials{}, fmt.Errorf("write credentials: %w", err)
	}
	if err := os.Link(tmp.Name(), file); err != nil && !errors.Is(err, fs.ErrExist) {
		return credentials{}, fmt.Errorf("keep credentials: %w", err)
	}
	return loadCredentials(file)
}
