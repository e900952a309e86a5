package store

import (
	"context"
	"crypto/rand"
	"time"
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

// endedKey names the record of a session that was ended.
func (s *Store) endedKey(id string) string { return s.prefix + "{farm:link}:ended:" + id }

// EndSession ends the session of a browser, whose cookie would count for at most keep.
func (s *Store) EndSession(ctx context.Context, id string, keep time.Duration) error {
	return wrap("end a session", s.rdb.Set(ctx, s.endedKey(id), "1", keep).Err())
}

// SessionEnded reports whether a session was ended.
func (s *Store) SessionEnded(ctx context.Context, id string) (bool, error) {
	n, err := s.rdb.Exists(ctx, s.endedKey(id)).Result()
	return n > 0, wrap("look for the end of a session", err)
}
