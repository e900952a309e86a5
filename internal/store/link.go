package store

import (
	"context"
	"crypto/rand"
	"time"
)

// linkKeyBytes is the length of the key that signs links.
const linkKeyBytes = 32

// LinkKey is the key with which the farm signs links. The first call makes it. Deleting it ends all links.
func (s *Store) LinkKey(ctx context.Context) ([]byte, error) {
	made := make([]byte, linkKeyBytes)
	_, _ = rand.Read(made) // never fails
	if err := s.rdb.SetNX(ctx, s.Index(SlotLink, IndexLinkKey), made, 0).Err(); err != nil {
		return nil, wrap("make the key of links", err)
	}
	key, err := s.rdb.Get(ctx, s.Index(SlotLink, IndexLinkKey)).Bytes()
	return key, wrap("read the key of links", err)
}

// EndSession ends the session of a browser, whose cookie would count for at most keep.
func (s *Store) EndSession(ctx context.Context, id string, keep time.Duration) error {
	return wrap("end a session", s.rdb.Set(ctx, s.Key(SlotLink, KeyEndedSession, id), "1", keep).Err())
}

// SessionEnded reports whether a session was ended.
func (s *Store) SessionEnded(ctx context.Context, id string) (bool, error) {
	n, err := s.rdb.Exists(ctx, s.Key(SlotLink, KeyEndedSession, id)).Result()
	return n > 0, wrap("look for the end of a session", err)
}
