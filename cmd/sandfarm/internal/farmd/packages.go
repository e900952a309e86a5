package farmd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/sandfarm/sandfarm/images"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/index"
)

// openIndex opens the package indexes that sandboxes install from. Their cache is in S3, so all workers share it.
func (p *Parts) openIndex() (*index.Index, error) {
	cfg := p.Settings.Index
	cfg.Cache, cfg.Logger, cfg.Memory, cfg.Pages = blobCache{p.Blobs}, p.Log, p.work, p.pages
	x, err := index.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("open package index: %w", err)
	}
	p.closers = append(p.closers, x.Close)
	return x, nil
}

// blobCache is the package cache in S3.
type blobCache struct{ blobs *blob.Store }

var _ index.Cache = blobCache{}

func (c blobCache) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, int64, error) {
	r, info, err := c.blobs.Get(ctx, key, offset, length)
	return r, info.Size, err
}

func (c blobCache) Put(ctx context.Context, key string, r io.Reader, size int64) error {
	_, err := c.blobs.Put(ctx, key, r, size, blob.PutOptions{ContentType: "application/octet-stream"})
	return err
}

func (c blobCache) Delete(ctx context.Context, keys ...string) error {
	return c.blobs.Delete(ctx, keys...)
}

func (c blobCache) List(ctx context.Context, prefix string, fn func(string, int64, time.Time) error) error {
	return c.blobs.List(ctx, prefix, func(info blob.Info) error { return fn(info.Key, info.Size, info.Modified) })
}

// cacheDir is a cache directory of this user for all farms; "" if there is none.
func cacheDir(name string) string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "sandfarm", name)
}

// installer fetches uv through the index, and caches its wheel on this host for all farms.
func installer(x *index.Index) func(ctx context.Context, arch string) ([]byte, error) {
	return func(ctx context.Context, arch string) ([]byte, error) {
		return images.Installer(ctx, cachedFetch(cacheDir("wheels"), x.Fetch), arch)
	}
}

// cachedFetch looks for a file in a directory before it fetches the file. A file with another hash is not used.
func cachedFetch(dir string, fetch images.FetchWheel) images.FetchWheel {
	if dir == "" {
		return fetch
	}
	return func(ctx context.Context, project, file, hash string) (io.ReadCloser, int64, error) {
		wheels := index.NewDir(dir)
		if data, ok := read(ctx, wheels, file); ok && sum(data) == hash {
			return io.NopCloser(bytes.NewReader(data)), int64(len(data)), nil
		}
		r, _, err := fetch(ctx, project, file, hash)
		if err != nil {
			return nil, 0, err
		}
		defer func() { _ = r.Close() }()
		data, err := io.ReadAll(r)
		if err != nil {
			return nil, 0, fmt.Errorf("read %s: %w", file, err)
		}
		if sum(data) == hash {
			_ = wheels.Put(ctx, file, bytes.NewReader(data), int64(len(data))) // a full disk only costs a download
		}
		return io.NopCloser(bytes.NewReader(data)), int64(len(data)), nil
	}
}

func read(ctx context.Context, wheels *index.Dir, file string) ([]byte, bool) {
	r, _, err := wheels.Get(ctx, file, 0, 0)
	if err != nil {
		return nil, false
	}
	defer func() { _ = r.Close() }()
	data, err := io.ReadAll(r)
	return data, err == nil
}

func sum(data []byte) string {
	hash := sha256.Sum256(data)
	return hex.EncodeToString(hash[:])
}
