package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Get opens an object for reading from offset; length 0 means to the end. CodeNotFound when it is missing, CodeInvalid
// when it ends before offset. The reader lives as long as ctx, and the caller closes it.
func (s *Store) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, Info, error) {
	if err := checkKey(key); err != nil {
		return nil, Info{}, err
	}
	if offset < 0 || length < 0 {
		return nil, Info{}, farm.Invalidf("An offset and a length must be 0 or more.")
	}
	var opts minio.GetObjectOptions
	switch {
	case length > 0:
		opts.Set("Range", "bytes="+strconv.FormatInt(offset, 10)+"-"+strconv.FormatInt(offset+length-1, 10))
	case offset > 0:
		opts.Set("Range", "bytes="+strconv.FormatInt(offset, 10)+"-")
	}
	core := minio.Core{Client: s.client}
	r, obj, header, err := core.GetObject(ctx, s.cfg.Bucket, key, opts)
	if err != nil {
		return nil, Info{}, toFarm(ctx, err, "get object")
	}
	info := infoOf(obj)
	info.Key = key
	info.Size = wholeSize(header, obj.Size)
	return body{ctx: ctx, ReadCloser: r}, info, nil
}

// Stat describes an object. CodeNotFound when it is missing.
func (s *Store) Stat(ctx context.Context, key string) (Info, error) {
	if err := checkKey(key); err != nil {
		return Info{}, err
	}
	callCtx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	obj, err := s.client.StatObject(callCtx, s.cfg.Bucket, key, minio.StatObjectOptions{})
	if err != nil {
		return Info{}, toFarm(ctx, err, "stat object")
	}
	info := infoOf(obj)
	info.Key = key
	return info, nil
}

func infoOf(obj minio.ObjectInfo) Info {
	return Info{Key: obj.Key, Size: obj.Size, ETag: strings.Trim(obj.ETag, `"`), ContentType: obj.ContentType, Modified: obj.LastModified}
}

// wholeSize returns an object's size from a response that may have only a part of it.
func wholeSize(header http.Header, partial int64) int64 {
	_, total, ok := strings.Cut(header.Get("Content-Range"), "/")
	if !ok {
		return partial
	}
	size, err := strconv.ParseInt(total, 10, 64)
	if err != nil {
		return partial
	}
	return size
}

// documentWeight is how often a document that is read is in memory at once: as it came, as text, decoded, as what callers see of it (for
// artifacts with links), and encoded, by the encoder and as the answer. Of a result with 9000 artifacts of long paths that is 5.8 times.
const documentWeight = 6

// PutDocument stores a document: JSON that a record refers to. An existing one is replaced.
func (s *Store) PutDocument(ctx context.Context, key string, data []byte) error {
	_, err := s.Put(ctx, key, bytes.NewReader(data), int64(len(data)), PutOptions{ContentType: "application/json"})
	return err
}

// GetDocument reads a document whole, and charges the request of ctx for it (see budget.Charge). CodeNotFound when it is missing.
func (s *Store) GetDocument(ctx context.Context, key string) ([]byte, error) {
	r, info, err := s.Get(ctx, key, 0, 0)
	if err != nil {
		return nil, err
	}
	if err := budget.Charge(ctx, info.Size*documentWeight); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	data := make([]byte, info.Size)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, errors.Join(fmt.Errorf("read document %s: %w", key, err), r.Close())
	}
	if err := r.Close(); err != nil {
		return nil, fmt.Errorf("read document %s: %w", key, toFarm(ctx, err, "close object"))
	}
	return data, nil
}
