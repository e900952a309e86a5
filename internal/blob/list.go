package blob

import (
	"context"

	"github.com/minio/minio-go/v7"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// deleteBatch is how many keys one delete request takes; S3 allows no more.
const deleteBatch = 1000

// List calls fn for each object whose key begins with prefix, in the order of keys, until fn fails. It is paged: memory
// stays flat. SHA256 and ContentType are empty.
func (s *Store) List(ctx context.Context, prefix string, fn func(Info) error) error {
	return s.ListAfter(ctx, prefix, "", fn)
}

// ListAfter is List of the keys behind one; "" lists all.
func (s *Store) ListAfter(ctx context.Context, prefix, after string, fn func(Info) error) error {
	listCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	for obj := range s.client.ListObjectsIter(listCtx, s.cfg.Bucket, minio.ListObjectsOptions{Prefix: prefix, StartAfter: after, Recursive: true}) {
		if obj.Err != nil {
			return toFarm(ctx, obj.Err, "list objects")
		}
		if err := fn(infoOf(obj)); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return toFarm(ctx, err, "list objects")
	}
	return nil
}

// Delete removes objects. A missing one counts as removed.
func (s *Store) Delete(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		if err := checkKey(key); err != nil {
			return err
		}
	}
	for len(keys) > 0 {
		n := min(len(keys), deleteBatch)
		if err := s.deleteSome(ctx, keys[:n]); err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}

// DeletePrefix removes every object whose key begins with prefix, which must not be empty, except those of some keys, and returns their number.
func (s *Store) DeletePrefix(ctx context.Context, prefix string, but ...string) (int, error) {
	if prefix == "" {
		return 0, farm.Invalidf("Deleting by prefix needs a prefix.")
	}
	var deleted int
	var keys []string
	kept := make(map[string]bool, len(but))
	for _, key := range but {
		kept[key] = true
	}
	flush := func() error {
		if err := s.Delete(ctx, keys...); err != nil {
			return err
		}
		deleted += len(keys)
		keys = keys[:0]
		return nil
	}
	err := s.List(ctx, prefix, func(info Info) error {
		if kept[info.Key] {
			return nil
		}
		if keys = append(keys, info.Key); len(keys) < deleteBatch {
			return nil
		}
		return flush()
	})
	if err != nil {
		return deleted, err
	}
	return deleted, flush()
}

func (s *Store) deleteSome(ctx context.Context, keys []string) error {
	callCtx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	if len(keys) == 1 {
		err := s.client.RemoveObject(callCtx, s.cfg.Bucket, keys[0], minio.RemoveObjectOptions{})
		if err != nil && farm.CodeOf(toFarm(ctx, err, "delete object")) != farm.CodeNotFound {
			return toFarm(ctx, err, "delete object")
		}
		return nil
	}
	objects := make(chan minio.ObjectInfo, len(keys))
	for _, key := range keys {
		objects <- minio.ObjectInfo{Key: key}
	}
	close(objects)
	for failed := range s.client.RemoveObjects(callCtx, s.cfg.Bucket, objects, minio.RemoveObjectsOptions{}) {
		err := toFarm(ctx, failed.Err, "delete objects")
		if farm.CodeOf(err) != farm.CodeNotFound {
			return err
		}
	}
	if err := callCtx.Err(); err != nil {
		return toFarm(ctx, err, "delete objects")
	}
	return nil
}
