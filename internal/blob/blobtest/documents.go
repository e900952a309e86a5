package blobtest

import (
	"testing"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func testDocuments(t *testing.T, s *blob.Store) {
	const key = "records/acme/job_1/result"
	if _, err := s.GetDocument(t.Context(), key); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("GetDocument of a missing document = %v, want code %s", err, farm.CodeNotFound)
	}
	for _, size := range []int{0, 1, 100, mib, 9 * mib, 100} { // each replaces the one before
		want := content(size)
		if err := s.PutDocument(t.Context(), key, want); err != nil {
			t.Fatalf("PutDocument of %d bytes: %v", size, err)
		}
		got, err := s.GetDocument(t.Context(), key)
		if err != nil {
			t.Fatalf("GetDocument of %d bytes: %v", size, err)
		}
		same(t, got, want)
	}
	if n, err := s.DeletePrefix(t.Context(), "records/acme/job_1/"); n != 1 || err != nil {
		t.Errorf("DeletePrefix = %d, %v, want 1", n, err)
	}
	if _, err := s.GetDocument(t.Context(), key); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("GetDocument of a deleted document = %v, want code %s", err, farm.CodeNotFound)
	}
}
