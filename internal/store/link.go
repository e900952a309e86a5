package store

import (
	"context"
	"crypto/rand"
)

// linkKeyBytes is the length of the key that signs links.
const linkKeyBytes = 32

// linkKey is the key that signs links to ports. It has a hash tag of its own, which no tenant has.
func (s *Store) linkKey() string { return s.prefix + "{farm:link}:key" }

// LinkKey is the key with which the farm signs links. The first call makes it. Deleting it ends all links.
func (s *Store) LinkKey(ctx context.Context) ([]byte, error) {
	made := make([]byte, linkKeyBytes)
	_, _ = rand.Read(made) // never fails
	if err := s.rdb.SetNX(ctx, s.linkKey(), made, 0).Err(); err != nil {
		return nil, wrap("make the key of links", err)
	}
	key, err := s.rdb.Get(ctx, s.linkKey()).Bytes()
	return key, wrap("read the key of links", err)
}
