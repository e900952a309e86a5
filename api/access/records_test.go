package access_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// records makes key sets of the real store, without a network: a connection would not end in the bubble of synctest.
type records struct {
	mu      sync.Mutex
	sums    map[string]store.KeySum
	keys    map[string]farm.Key
	version int
	down    error
	hang    bool
	looks   int // calls of KeysVersion and KeySet
	used    map[string]time.Time
}

func newRecords() *records {
	return &records{sums: map[string]store.KeySum{}, keys: map[string]farm.Key{}, used: map[string]time.Time{}}
}

func (r *records) create(secret string, key farm.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key.ID = "key_" + secret
	r.sums[secret], r.keys[secret] = sha256.Sum256([]byte(secret)), key
	r.version++
}

func (r *records) revoke(secret string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.keys, secret)
	r.version++
}

func (r *records) lose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.keys)
	r.version = 0
}

func (r *records) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = err
}

func (r *records) answer(ctx context.Context) error {
	r.mu.Lock()
	r.looks++
	down, hang := r.down, r.hang
	r.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return down
}

func (r *records) KeysVersion(ctx context.Context) (string, error) {
	if err := r.answer(ctx); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprint(r.version), nil
}

func (r *records) KeySet(ctx context.Context) (store.KeySet, error) {
	if err := r.answer(ctx); err != nil {
		return store.KeySet{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	set := store.NewKeySet(fmt.Sprint(r.version))
	for secret, key := range r.keys {
		if err := set.Add(r.sums[secret], key); err != nil {
			return set, err
		}
	}
	return set, nil
}

func (r *records) NoteKeyUse(_ context.Context, used map[string]time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down != nil {
		return r.down
	}
	for id, at := range used {
		r.used[id] = at
	}
	return nil
}

func acme(scopes ...farm.Scope) farm.Key { return farm.Key{Tenant: "acme", Scopes: scopes} }

func find(t *testing.T, ring *access.Keys, secret string) (access.Caller, farm.Code) {
	t.Helper()
	caller, err := ring.Find(t.Context(), secret)
	return caller, farm.CodeOf(err)
}
