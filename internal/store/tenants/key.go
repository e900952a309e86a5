package tenants

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

// KeySum is the SHA-256 of an API key.
type KeySum = [32]byte

// KeySet are the API keys of the farm as they were at one moment.
type KeySet struct {
	// Version changes with every new or deleted key; "" means that there has never been one, or that Redis lost them.
	Version string
	records map[string]string // by the hash in hex; decoded when they are needed
}

// NewKeySet makes an empty set, for sources of keys other than a Store.
func NewKeySet(version string) KeySet {
	return KeySet{Version: version, records: map[string]string{}}
}

// Add adds a key to a set of NewKeySet.
func (k KeySet) Add(sum KeySum, key farm.Key) error {
	doc, err := db.Encode("key", key)
	k.records[hex.EncodeToString(sum[:])] = string(doc)
	return err
}

// Len is the number of keys, expired ones included.
func (k KeySet) Len() int { return len(k.records) }

// Find returns the key with a hash. Expired keys are found too.
func (k KeySet) Find(sum KeySum) (farm.Key, bool) {
	text, ok := k.records[hex.EncodeToString(sum[:])]
	if !ok {
		return farm.Key{}, false
	}
	var key farm.Key
	if err := json.Unmarshal([]byte(text), &key); err != nil {
		return farm.Key{}, false // a record that no version of this program wrote gives no rights
	}
	return key, true
}

// All are the keys of the set in no order, expired ones included.
func (k KeySet) All() iter.Seq[farm.Key] {
	return func(yield func(farm.Key) bool) {
		for _, text := range k.records {
			var key farm.Key
			if json.Unmarshal([]byte(text), &key) == nil && !yield(key) {
				return
			}
		}
	}
}

// CreateKey stores a key under its hash, and the name of its tenant. CodeExhausted: the farm has Limits.MaxKeys already.
func (s *Store) CreateKey(ctx context.Context, sum KeySum, key farm.Key) error {
	doc, err := db.Encode("key", key)
	if err != nil {
		return err
	}
	if err := s.StoreTenant(ctx, key.Tenant); err != nil {
		return err
	}
	r, err := s.Run(ctx, "create key", "key", db.SlotKeys, "create", rand.Text(), key.ID, hex.EncodeToString(sum[:]), doc, s.Limits.MaxKeys)
	if err != nil {
		return err
	}
	if r.Text(0) == "full" {
		return farm.Errorf(farm.CodeExhausted, "The farm has %d API keys, the most that it keeps. Revoke keys that are no longer used.", s.Limits.MaxKeys)
	}
	return nil
}

// DeleteKey revokes a key and returns what it was. CodeNotFound: there is no such key.
func (s *Store) DeleteKey(ctx context.Context, id string) (farm.Key, error) {
	var key farm.Key
	r, err := s.Run(ctx, "delete key", "key", db.SlotKeys, "delete", rand.Text(), id)
	if err != nil {
		return key, err
	}
	if r.Text(0) == "none" {
		return key, farm.NotFoundf("There is no API key %s. GET /v1/keys lists them.", db.Clip(id))
	}
	if err := json.Unmarshal([]byte(r.Text(1)), &key); err != nil {
		return farm.Key{ID: id}, nil // it is deleted, whatever it was
	}
	return key, nil
}

// KeysVersion reads the version of the keys: cheap, to learn whether a KeySet is still current.
func (s *Store) KeysVersion(ctx context.Context) (string, error) {
	version, err := s.Redis.Get(ctx, s.Index(db.SlotKeys, db.IndexKeyVersion)).Result()
	if err == redis.Nil { //nolint:errorlint // go-redis returns it as it is
		return "", nil
	}
	return version, db.Wrap("read version of keys", err)
}

// KeySet reads all keys.
func (s *Store) KeySet(ctx context.Context) (KeySet, error) {
	var version *redis.StringCmd
	var records *redis.MapStringStringCmd
	_, err := s.Redis.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		version, records = pipe.Get(ctx, s.Index(db.SlotKeys, db.IndexKeyVersion)), pipe.HGetAll(ctx, s.Index(db.SlotKeys, db.IndexKeyRecords))
		return nil
	})
	if err != nil && err != redis.Nil { //nolint:errorlint // go-redis returns it as it is
		return KeySet{}, db.Wrap("read keys", err)
	}
	return KeySet{Version: version.Val(), records: records.Val()}, db.Wrap("read keys", records.Err())
}

// Keys lists all keys with their last use, newest first. Expired keys are part of it until TrimKeys deletes them.
func (s *Store) Keys(ctx context.Context) ([]farm.Key, error) {
	set, err := s.KeySet(ctx)
	if err != nil {
		return nil, err
	}
	used, err := s.Redis.HGetAll(ctx, s.Index(db.SlotKeys, db.IndexKeyUses)).Result()
	if err != nil {
		return nil, db.Wrap("read last use of keys", err)
	}
	keys := make([]farm.Key, 0, set.Len())
	for _, text := range set.records {
		var key farm.Key
		if err := json.Unmarshal([]byte(text), &key); err != nil {
			return nil, fmt.Errorf("decode key: %w", err)
		}
		if at, err := strconv.ParseInt(used[key.ID], 10, 64); err == nil {
			key.LastUsedAt = time.Unix(at, 0).UTC()
		}
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b farm.Key) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return keys, nil
}

// NoteKeyUse records when keys were used last. Deleted keys are ignored.
func (s *Store) NoteKeyUse(ctx context.Context, used map[string]time.Time) error {
	if len(used) == 0 {
		return nil
	}
	args := []any{"used"}
	for id, at := range used {
		args = append(args, id, at.Unix())
	}
	_, err := s.Run(ctx, "note use of keys", "key", db.SlotKeys, args...)
	return err
}

// TrimKeys deletes keys that expired before a time, and returns how many it deleted.
func (s *Store) TrimKeys(ctx context.Context, before time.Time) (int, error) {
	keys, err := s.Keys(ctx)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, key := range keys {
		if key.ExpiresAt.IsZero() || !key.ExpiresAt.Before(before) {
			continue
		}
		if _, err := s.DeleteKey(ctx, key.ID); err != nil && farm.CodeOf(err) != farm.CodeNotFound {
			return n, err
		}
		n++
	}
	return n, nil
}

// linkKeyBytes is the length of the key that signs links.
const linkKeyBytes = 32

// LinkKey is the key with which the farm signs links. The first call makes it. Deleting it ends all links.
func (s *Store) LinkKey(ctx context.Context) ([]byte, error) {
	name := s.Index(db.SlotLink, db.IndexLinkKey)
	key, err := s.Redis.Get(ctx, name).Bytes()
	if errors.Is(err, redis.Nil) { // a Redis that is full still has the key
		made := make([]byte, linkKeyBytes)
		_, _ = rand.Read(made) // never fails
		if err := s.Redis.SetNX(ctx, name, made, 0).Err(); err != nil {
			return nil, db.Wrap("make the key of links", err)
		}
		key, err = s.Redis.Get(ctx, name).Bytes()
	}
	return key, db.Wrap("read the key of links", err)
}

// EndSession ends the session of a browser, whose cookie would count for at most keep.
func (s *Store) EndSession(ctx context.Context, id string, keep time.Duration) error {
	return db.Wrap("end a session", s.Redis.Set(ctx, s.Key(db.SlotLink, db.KeyEndedSession, id), "1", keep).Err())
}

// SessionEnded reports whether a session was ended.
func (s *Store) SessionEnded(ctx context.Context, id string) (bool, error) {
	n, err := s.Redis.Exists(ctx, s.Key(db.SlotLink, db.KeyEndedSession, id)).Result()
	return n > 0, db.Wrap("look for the end of a session", err)
}
