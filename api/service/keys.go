package service

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// KeyPrefix begins the keys that the farm makes.
const KeyPrefix = "sf_"

// secretBytes is the length of a new API key before it is written in hex.
const secretBytes = 24

// NewSecret makes an API key.
func NewSecret() string {
	var secret [secretBytes]byte
	_, _ = rand.Read(secret[:]) // never fails
	return KeyPrefix + hex.EncodeToString(secret[:])
}

// CreateKey makes an API key. Of the call it uses only the problems of the body.
func (s *Service) CreateKey(ctx context.Context, c Call, r wire.KeyRequest) (wire.NewKey, error) {
	p := c.problems()
	if !farm.ValidTenant(r.Tenant) {
		p.addf("/tenant", "tenant %q must be "+farm.TenantNames, farm.Shorten(r.Tenant))
	}
	if len(r.Name) > farm.MaxKeyNameBytes {
		p.addf("/name", "name has %d bytes; at most %d are allowed", len(r.Name), farm.MaxKeyNameBytes)
	} else {
		p.check("/name", checkText("name", r.Name))
	}
	scopes, err := farm.ParseScopes(r.Scopes)
	p.check("/scopes", err)
	if len(scopes) == 0 {
		scopes = []farm.Scope{farm.ScopeRun}
	}
	if r.Scopes != nil && len(r.Scopes) == 0 {
		p.addf("/scopes", "scopes is empty: name at least one, or leave it out for run")
	}
	if life := r.ExpiresSeconds; life != nil && (*life < 1 || *life > farm.MaxKeySeconds) {
		p.addf("/expires_seconds", "expires_seconds is %d; it must be from 1 to %d, or be left out for a key that never expires", *life, farm.MaxKeySeconds)
	}
	if err := p.err(); err != nil {
		return wire.NewKey{}, err
	}
	if err := s.checkFirstKey(ctx, scopes); err != nil {
		return wire.NewKey{}, err
	}
	key := farm.Key{ID: farm.NewID(farm.KeyPrefix), Tenant: r.Tenant, Name: r.Name, Scopes: scopes, CreatedAt: s.Now().UTC()}
	if r.ExpiresSeconds != nil {
		key.ExpiresAt = key.CreatedAt.Add(time.Duration(*r.ExpiresSeconds) * time.Second)
	}
	secret := NewSecret()
	if err := s.Store.CreateKey(ctx, sha256.Sum256([]byte(secret)), key); err != nil {
		return wire.NewKey{}, err
	}
	return wire.NewKey{Key: keyOf(key), Secret: secret}, nil
}

// checkFirstKey refuses a first key without the scope admin: from then on the farm needs keys, and nobody could make another one over the API.
func (s *Service) checkFirstKey(ctx context.Context, scopes []farm.Scope) error {
	if slices.Contains(scopes, farm.ScopeAdmin) || len(s.options.SettingsKeys) > 0 {
		return nil
	}
	keys, err := s.Store.Keys(ctx)
	if err != nil || len(keys) > 0 {
		return err
	}
	return farm.Conflictf("The first key of a farm must have the scope admin, which makes others: sandfarm key create --local --tenant NAME --scope admin --scope run")
}

// Keys lists the API keys: those made at run time, newest first, then those of the settings. tenant "" lists those of all tenants.
func (s *Service) Keys(ctx context.Context, tenant string, page store.Page) (wire.List[wire.Key], error) {
	keys, err := s.Store.Keys(ctx)
	if err != nil {
		return wire.List[wire.Key]{}, err
	}
	keys = append(keys, s.options.SettingsKeys...)
	if tenant != "" {
		keys = slices.DeleteFunc(keys, func(k farm.Key) bool { return k.Tenant != tenant })
	}
	slices.SortFunc(keys, newestKey)
	if page.Cursor != "" {
		last, err := keyAt(page.Cursor)
		if err != nil {
			return wire.List[wire.Key]{}, err
		}
		from, _ := slices.BinarySearchFunc(keys, last, newestKey)
		for from < len(keys) && newestKey(keys[from], last) <= 0 {
			from++
		}
		keys = keys[from:]
	}
	list := wire.List[wire.Key]{Items: []wire.Key{}}
	limit := cmp.Or(page.Limit, len(keys))
	for i, key := range keys {
		if i == limit {
			list.NextCursor = keyCursor(keys[i-1])
			break
		}
		list.Items = append(list.Items, keyOf(key))
	}
	return list, nil
}

// newestKey orders keys from the newest. The keys of the settings, which have no time, are last.
func newestKey(a, b farm.Key) int {
	return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.ID, b.ID))
}

func keyCursor(k farm.Key) wire.Cursor {
	at := int64(0)
	if !k.CreatedAt.IsZero() {
		at = k.CreatedAt.UnixNano()
	}
	return wire.Cursor(strconv.FormatInt(at, 36) + "." + k.ID)
}

// keyAt is the place of a cursor: a key with the time and id of the last one of the page before.
func keyAt(cursor string) (farm.Key, error) {
	at, id, _ := strings.Cut(cursor, ".")
	n, err := strconv.ParseInt(at, 36, 64)
	if err != nil || !farm.ValidID(farm.KeyPrefix, id) {
		return farm.Key{}, farm.Invalidf("%q is not a cursor of this list. Start again without a cursor.", farm.Shorten(cursor))
	}
	key := farm.Key{ID: id}
	if n != 0 {
		key.CreatedAt = time.Unix(0, n).UTC()
	}
	return key, nil
}

// RevokeKey revokes an API key that was made at run time. Requests in progress with it end within seconds; jobs that it started continue.
func (s *Service) RevokeKey(ctx context.Context, id string) error {
	if slices.ContainsFunc(s.options.SettingsKeys, func(k farm.Key) bool { return k.ID == id }) {
		return farm.Conflictf("The key %s is one of the farm's settings: remove it from api.keys and restart the API.", id)
	}
	_, err := s.Store.DeleteKey(ctx, id)
	return err
}

func keyOf(k farm.Key) wire.Key {
	out := wire.Key{
		ID: k.ID, Tenant: k.Tenant, Name: k.Name, Scopes: []string{}, Origin: "api",
		CreatedAt: instant(k.CreatedAt), ExpiresAt: instant(k.ExpiresAt), LastUsedAt: instant(k.LastUsedAt),
	}
	if k.CreatedAt.IsZero() {
		out.Origin = "settings"
	}
	for _, scope := range k.Scopes {
		out.Scopes = append(out.Scopes, string(scope))
	}
	return out
}

// Audit lists entries of the audit, newest first: of a tenant, or of all with "".
func (s *Service) Audit(ctx context.Context, tenant string, created store.TimeRange, page store.Page) (wire.List[wire.AuditEntry], error) {
	if tenant != "" && !farm.ValidTenant(tenant) {
		return wire.List[wire.AuditEntry]{}, farm.Invalidf("tenant %q is not the name of a tenant", farm.Shorten(tenant))
	}
	entries, next, err := s.Store.Audit(ctx, tenant, created, page)
	list := wire.List[wire.AuditEntry]{Items: make([]wire.AuditEntry, len(entries)), NextCursor: wire.Cursor(next)}
	for i, e := range entries {
		list.Items[i] = wire.AuditEntry(e)
	}
	return list, err
}
