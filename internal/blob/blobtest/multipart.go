package blobtest

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func beginUpload(t *testing.T, s *blob.Store, key string) string {
	t.Helper()
	upload, err := s.BeginUpload(t.Context(), key, blob.PutOptions{ContentType: "text/plain; charset=utf-8", Filename: "out.txt"})
	if err != nil {
		t.Fatalf("BeginUpload(%q): %v", key, err)
	}
	return upload
}

// putParts sends data in parts, from part number on.
func putParts(t *testing.T, s *blob.Store, key, upload string, number int, data []byte) {
	t.Helper()
	for ; len(data) > 0; number++ {
		n := min(len(data), blob.PartBytes)
		if err := s.PutPart(t.Context(), key, upload, number, bytes.NewReader(data[:n]), int64(n)); err != nil {
			t.Fatalf("PutPart %d of %q: %v", number, key, err)
		}
		data = data[n:]
	}
}

func testUploadInParts(t *testing.T, s *blob.Store) {
	for _, size := range []int{1, blob.PartBytes - 1, blob.PartBytes, blob.PartBytes + 1, 3*blob.PartBytes + 7} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			key, data := fmt.Sprintf("parts/%d", size), content(size)
			upload := beginUpload(t, s, key)
			putParts(t, s, key, upload, 1, data)
			if _, err := s.Stat(t.Context(), key); farm.CodeOf(err) != farm.CodeNotFound {
				t.Errorf("Stat before the upload is completed = %v, want code %s", err, farm.CodeNotFound)
			}
			for _, wrong := range []int64{int64(size) - 1, int64(size) + 1} {
				if err := s.CompleteUpload(t.Context(), key, upload, wrong); farm.CodeOf(err) != farm.CodeInvalid {
					t.Errorf("CompleteUpload with %d bytes of %d = %v, want code %s", wrong, size, err, farm.CodeInvalid)
				}
			}
			if err := s.CompleteUpload(t.Context(), key, upload, int64(size)); err != nil {
				t.Fatalf("CompleteUpload: %v", err)
			}
			got, info := get(t, s, key, 0, 0)
			same(t, got, data)
			if info.Size != int64(size) || info.ContentType != "text/plain; charset=utf-8" {
				t.Errorf("Get says %+v", info)
			}
		})
	}
}

// What a process that died may have done already can be done again.
func testUploadInPartsAgain(t *testing.T, s *blob.Store) {
	const key = "again"
	data := content(2*blob.PartBytes + 9)
	upload := beginUpload(t, s, key)
	putParts(t, s, key, upload, 1, data[:blob.PartBytes])
	if err := s.PutPart(t.Context(), key, upload, 3, bytes.NewReader(data[2*blob.PartBytes:]), int64(len(data)-2*blob.PartBytes)); err != nil {
		t.Fatalf("PutPart 3: %v", err)
	}
	if err := s.CompleteUpload(t.Context(), key, upload, int64(len(data))); farm.CodeOf(err) != farm.CodeInvalid {
		t.Errorf("CompleteUpload without part 2 = %v, want code %s", err, farm.CodeInvalid)
	}
	putParts(t, s, key, upload, 1, data) // parts 1 and 3 once more
	for range 2 {
		if err := s.CompleteUpload(t.Context(), key, upload, int64(len(data))); err != nil {
			t.Fatalf("CompleteUpload: %v", err)
		}
	}
	got, _ := get(t, s, key, 0, 0)
	same(t, got, data)
	if err := s.PutPart(t.Context(), key, upload, 4, bytes.NewReader(data[:1]), 1); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("PutPart after the end = %v, want code %s", err, farm.CodeNotFound)
	}
	if err := s.CompleteUpload(t.Context(), key, upload, 1); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("CompleteUpload with another size after the end = %v, want code %s", err, farm.CodeNotFound)
	}
	gone := beginUpload(t, s, "aborted")
	putParts(t, s, "aborted", gone, 1, data[:9])
	for range 2 {
		if err := s.AbortUpload(t.Context(), "aborted", gone); err != nil {
			t.Fatalf("AbortUpload: %v", err)
		}
	}
	if err := s.PutPart(t.Context(), "aborted", gone, 2, bytes.NewReader(data[:1]), 1); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("PutPart of an aborted upload = %v, want code %s", err, farm.CodeNotFound)
	}
	if err := s.CompleteUpload(t.Context(), "aborted", gone, 9); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("CompleteUpload of an aborted upload = %v, want code %s", err, farm.CodeNotFound)
	}
	// All uploads of one key are found by the key, in every service.
	lost := beginUpload(t, s, "lost")
	putParts(t, s, "lost", lost, 1, data[:9])
	if n, err := s.AbortUploadsOf(t.Context(), "lost"); n != 1 || err != nil {
		t.Errorf("AbortUploadsOf = %d, %v; want 1", n, err)
	}
	if err := s.PutPart(t.Context(), "lost", lost, 2, bytes.NewReader(data[:1]), 1); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("PutPart of a lost upload = %v, want code %s", err, farm.CodeNotFound)
	}
}
