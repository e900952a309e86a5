package blob

import (
	"context"
	"time"

	"github.com/minio/minio-go/v7"
)

// uploadsBatch is how many uploads one list request gives; S3 allows no more.
const uploadsBatch = 1000

// AbortUploads aborts multipart uploads under a prefix that began before a time and were never completed, and returns their
// number: their parts take space that no list of objects shows. A service that cannot list uploads by prefix (MinIO) returns
// none; it aborts them itself.
func (s *Store) AbortUploads(ctx context.Context, prefix string, before time.Time) (int, error) {
	return s.abortUploads(ctx, prefix, func(u minio.ObjectMultipartInfo) bool { return u.Initiated.Before(before) })
}

// AbortUploadsOf aborts all uploads of one object that were not completed, and returns their number.
func (s *Store) AbortUploadsOf(ctx context.Context, key string) (int, error) {
	return s.abortUploads(ctx, key, func(u minio.ObjectMultipartInfo) bool { return u.Key == key })
}

// abortUploads aborts the uploads under a prefix that match.
func (s *Store) abortUploads(ctx context.Context, prefix string, match func(minio.ObjectMultipartInfo) bool) (int, error) {
	core := minio.Core{Client: s.client}
	var aborted int
	var key, upload string
	for {
		page, err := s.listUploads(ctx, core, prefix, key, upload)
		if err != nil {
			return aborted, err
		}
		for _, u := range page.Uploads {
			if !match(u) {
				continue
			}
			if err := s.abort(ctx, core, u.Key, u.UploadID); err != nil {
				return aborted, err
			}
			aborted++
		}
		if !page.IsTruncated || page.NextKeyMarker == key && page.NextUploadIDMarker == upload {
			return aborted, nil
		}
		key, upload = page.NextKeyMarker, page.NextUploadIDMarker
	}
}

func (s *Store) listUploads(ctx context.Context, core minio.Core, prefix, key, upload string) (minio.ListMultipartUploadsResult, error) {
	callCtx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	page, err := core.ListMultipartUploads(callCtx, s.cfg.Bucket, prefix, key, upload, "", uploadsBatch)
	if err != nil {
		return page, toFarm(ctx, err, "list uploads")
	}
	return page, nil
}

// abort ends an upload. One that no longer exists counts as aborted.
func (s *Store) abort(ctx context.Context, core minio.Core, key, upload string) error {
	callCtx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	err := core.AbortMultipartUpload(callCtx, s.cfg.Bucket, key, upload)
	if err != nil && minio.ToErrorResponse(err).Code != minio.NoSuchUpload {
		return toFarm(ctx, err, "abort upload")
	}
	return nil
}
