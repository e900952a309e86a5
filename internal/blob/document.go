package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/sandfarm/sandfarm/internal/budget"
)

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
