package index

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Dir is a Cache in a directory of this host, for image builds: they run before there is an object store. Several
// processes may share it.
type Dir struct{ path string }

var _ Cache = (*Dir)(nil)

// NewDir makes a Cache in a directory, which is created by the first Put.
func NewDir(path string) *Dir { return &Dir{path: path} }

// file returns the path of a key. Keys are ours, but a mistake must not escape the directory.
func (d *Dir) file(key string) (string, error) {
	if !filepath.IsLocal(key) || strings.HasSuffix(key, tempSuffix) {
		return "", fmt.Errorf("find %q in the package cache: it is not a key", key)
	}
	return filepath.Join(d.path, filepath.FromSlash(key)), nil
}

// tempSuffix ends the names of files that are being written.
const tempSuffix = ".part"

// Get opens a value.
func (d *Dir) Get(_ context.Context, key string, offset, length int64) (io.ReadCloser, int64, error) {
	path, err := d.file(key)
	if err != nil {
		return nil, 0, err
	}
	f, err := os.Open(path) //nolint:gosec // a name of ours below the cache's directory
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, farm.NotFoundf("%s is not in the package cache", key)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("open cached package: %w", err)
	}
	info, err := f.Stat()
	if err == nil {
		_, err = f.Seek(offset, io.SeekStart)
	}
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("read cached package: %w", err), f.Close())
	}
	if length <= 0 {
		length = info.Size()
	}
	return section{io.LimitReader(f, length), f}, info.Size(), nil
}

// section is a range of a file.
type section struct {
	io.Reader
	io.Closer
}

// Put writes a value to a temporary file and renames it.
func (d *Dir) Put(_ context.Context, key string, r io.Reader, size int64) (err error) {
	path, err := d.file(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("make package cache: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "*"+tempSuffix)
	if err != nil {
		return fmt.Errorf("write package cache: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	n, err := io.Copy(f, r)
	if err == nil && n != size {
		err = fmt.Errorf("it has %d bytes, want %d", n, size)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write package cache: %w", err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("write package cache: %w", err)
	}
	return nil
}

// Delete removes values.
func (d *Dir) Delete(_ context.Context, keys ...string) error {
	var errs []error
	for _, key := range keys {
		path, err := d.file(key)
		if err == nil {
			err = os.Remove(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// List calls fn for each value below a prefix.
func (d *Dir) List(ctx context.Context, prefix string, fn func(key string, size int64, modified time.Time) error) error {
	err := filepath.WalkDir(d.path, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.HasSuffix(path, tempSuffix) {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		relative, err := filepath.Rel(d.path, path)
		if err != nil {
			return err
		}
		key := filepath.ToSlash(relative)
		info, err := e.Info()
		if err != nil || !strings.HasPrefix(key, prefix) {
			return nil // it was removed meanwhile
		}
		return fn(key, info.Size(), info.ModTime())
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
