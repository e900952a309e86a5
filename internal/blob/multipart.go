package blob

import (
	"context"
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// PartBytes is the size of each part of an upload but the last: the smallest that S3 takes.
	PartBytes = 5 << 20
	// partsBatch is how many parts one list request gives; S3 allows no more.
	partsBatch = 1000
)

// BeginUpload begins an upload of an object in parts and returns its id. The object appears when the upload is completed. Another
// process may continue an upload, given its id.
func (s *Store) BeginUpload(ctx context.Context, key string, opts PutOptions) (string, error) {
	if err := checkKey(key); err != nil {
		return "", err
	}
	callCtx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	put := s.putOptions(key, opts)
	put.UserMetadata = map[string]string{"X-Amz-Checksum-Algorithm": minio.ChecksumCRC32C.String()}
	upload, err := minio.Core{Client: s.client}.NewMultipartUpload(callCtx, s.cfg.Bucket, key, put)
	if err != nil {
		return "", toFarm(ctx, err, "begin upload")
	}
	return upload, nil
}

// PutPart sends a part; numbers begin with 1. A part that was sent before is replaced. All parts but the last have PartBytes.
// data is read twice, from its start, and not kept in memory. CodeNotFound: the upload was completed or aborted.
func (s *Store) PutPart(ctx context.Context, key, upload string, number int, data io.ReadSeeker, size int64) error {
	sum, err := checksum(data)
	if err != nil {
		return err
	}
	opts := minio.PutObjectPartOptions{DisableContentSha256: true, CustomHeader: map[string][]string{
		minio.ChecksumCRC32C.Key(): {sum},
	}}
	_, err = minio.Core{Client: s.client}.PutObjectPart(ctx, s.cfg.Bucket, key, upload, number, data, size, opts)
	if err != nil {
		return toFarm(ctx, err, "put part")
	}
	return nil
}

// checksum is the CRC32C of data as S3 writes it. It leaves data at its start.
func checksum(data io.ReadSeeker) (string, error) {
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	_, err := data.Seek(0, io.SeekStart)
	if err == nil {
		err = Hash(sum, data)
	}
	if err == nil {
		_, err = data.Seek(0, io.SeekStart)
	}
	if err != nil {
		return "", fmt.Errorf("read part: %w", err)
	}
	return base64.StdEncoding.EncodeToString(sum.Sum(nil)), nil
}

// CompleteUpload makes the object of the parts that were sent, which must have size bytes together. An upload that is gone counts as
// completed if the object exists and has that size; else CodeNotFound. CodeInvalid: parts are missing.
func (s *Store) CompleteUpload(ctx context.Context, key, upload string, size int64) error {
	core := minio.Core{Client: s.client}
	parts, err := s.uploadedParts(ctx, core, key, upload, size)
	if err == nil {
		_, err = core.CompleteMultipartUpload(ctx, s.cfg.Bucket, key, upload, parts, minio.PutObjectOptions{})
		if err != nil {
			err = toFarm(ctx, err, "complete upload")
		}
	}
	if farm.CodeOf(err) == farm.CodeNotFound {
		if info, statErr := s.Stat(ctx, key); statErr == nil && info.Size == size {
			return nil
		}
	}
	return err
}

// uploadedParts lists the parts of an upload, and checks that they are consecutive and have size bytes.
func (s *Store) uploadedParts(ctx context.Context, core minio.Core, key, upload string, size int64) ([]minio.CompletePart, error) {
	var parts []minio.CompletePart
	var total int64
	for {
		callCtx, cancel := context.WithTimeout(ctx, controlTimeout)
		page, err := core.ListObjectParts(callCtx, s.cfg.Bucket, key, upload, len(parts), partsBatch)
		cancel()
		if err != nil {
			return nil, toFarm(ctx, err, "list parts")
		}
		for _, p := range page.ObjectParts {
			if p.PartNumber != len(parts)+1 {
				return nil, farm.Invalidf("Part %d of the upload is missing.", len(parts)+1)
			}
			parts = append(parts, minio.CompletePart{PartNumber: p.PartNumber, ETag: p.ETag, ChecksumCRC32C: p.ChecksumCRC32C})
			total += p.Size
		}
		if !page.IsTruncated || len(page.ObjectParts) == 0 {
			break
		}
	}
	if total != size {
		return nil, farm.Invalidf("The parts of the upload have %d bytes, not %d.", total, size)
	}
	return parts, nil
}

// AbortUpload removes an upload and its parts. One that is gone counts as removed.
func (s *Store) AbortUpload(ctx context.Context, key, upload string) error {
	if err := s.abort(ctx, minio.Core{Client: s.client}, key, upload); err != nil {
		return fmt.Errorf("upload of %s: %w", key, err)
	}
	return nil
}

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
