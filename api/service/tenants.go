package service

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Tenants are the quotas and the usage of tenants.
type Tenants interface {
	Tenants(ctx context.Context) ([]string, error)
	Tenant(ctx context.Context, name string) error
	ChangeTenant(ctx context.Context, tenant string, change store.TenantChange) error
	TenantLists(ctx context.Context, tenant string) (store.TenantLists, error)
	QuotaUse(ctx context.Context, tenant string) ([]farm.QuotaUse, map[farm.QuotaName]float64, error)
	Usage(ctx context.Context, tenant string, days int) ([]store.Usage, error)
	access.GateStore
}

// UsageDaysDefault is for how many days usage is shown if the caller does not say.
const UsageDaysDefault = 30

// Usage reads what a tenant uses of its quotas, and what it has used in the last days.
func (s *Service) Usage(ctx context.Context, tenant string, days int) (wire.Usage, error) {
	use, _, err := s.Store.QuotaUse(ctx, tenant)
	if err != nil {
		return wire.Usage{}, err
	}
	found, err := s.Store.Usage(ctx, tenant, days)
	if err != nil {
		return wire.Usage{}, err
	}
	out := wire.Usage{Tenant: tenant, Quotas: quotasOf(use), Days: make([]wire.DayUsage, len(found))}
	for i, d := range found {
		out.Days[i] = wire.DayUsage(d)
	}
	return out, nil
}

// quotaOf is a quota as callers see it.
func quotaOf(use farm.QuotaUse) wire.Quota {
	q := wire.Quota{Name: string(use.Name), Used: use.Used}
	if use.Limit != farm.NoQuota {
		q.Limit = &use.Limit
	}
	return q
}

func quotasOf(use []farm.QuotaUse) []wire.Quota {
	out := make([]wire.Quota, len(use))
	for i, u := range use {
		out[i] = quotaOf(u)
	}
	return out
}

// Tenant reads a tenant; CodeNotFound if it has neither had a job nor quotas of its own.
func (s *Service) Tenant(ctx context.Context, name string) (wire.Tenant, error) {
	if err := s.Store.Tenant(ctx, name); err != nil {
		return wire.Tenant{}, err
	}
	return s.tenant(ctx, name)
}

func (s *Service) tenant(ctx context.Context, name string) (wire.Tenant, error) {
	use, own, err := s.Store.QuotaUse(ctx, name)
	if err != nil {
		return wire.Tenant{}, err
	}
	lists, err := s.Store.TenantLists(ctx, name)
	if err != nil {
		return wire.Tenant{}, err
	}
	out := wire.Tenant{Name: name, Own: make(map[string]float64, len(own)), Quotas: quotasOf(use), Runtimes: emptyIfNil(lists.Runtimes)}
	if !lists.Hosts.Farm {
		texts := lists.Hosts.Texts()
		out.AllowHosts = &texts
	}
	for name, value := range own {
		out.Own[string(name)] = value
	}
	return out, nil
}

// TenantPage lists tenants by name, after the one that the cursor names.
func (s *Service) TenantPage(ctx context.Context, p store.Page) (wire.List[wire.Tenant], error) {
	names, err := s.Store.Tenants(ctx)
	if err != nil {
		return wire.List[wire.Tenant]{}, err
	}
	slices.Sort(names)
	from, found := slices.BinarySearch(names, p.Cursor)
	if found {
		from++
	}
	names = names[from:]
	list := wire.List[wire.Tenant]{Items: []wire.Tenant{}}
	for i, name := range names {
		if i == p.Limit {
			list.NextCursor = wire.Cursor(names[i-1])
			break
		}
		tenant, err := s.tenant(ctx, name)
		if err != nil {
			return wire.List[wire.Tenant]{}, err
		}
		list.Items = append(list.Items, tenant)
	}
	return list, nil
}

// SetTenant sets all settings of a tenant: those that the request leaves out get the farm's default. The tenant need not exist before.
func (s *Service) SetTenant(ctx context.Context, c Call, name string, r wire.TenantRequest) (wire.Tenant, error) {
	p := c.problems()
	change := store.TenantChange{Quotas: quotasIn(p, "", r), Runtimes: runtimesIn(p, "", r), Hosts: hostsIn(p, "", r)}
	if change.Runtimes == nil {
		change.Runtimes = &[]string{}
	}
	if change.Hosts == nil {
		change.Hosts = &store.TenantHosts{Farm: true}
	}
	return s.changeTenant(ctx, p, name, change)
}

// ChangeTenant changes the settings that the request names, in one step. The tenant need not exist before.
func (s *Service) ChangeTenant(ctx context.Context, c Call, name string, r wire.TenantChange) (wire.Tenant, error) {
	p := c.problems()
	change, runtimes, hosts := quotasIn(p, "/set", r.Set), runtimesIn(p, "/set", r.Set), hostsIn(p, "/set", r.Set)
	maps.DeleteFunc(change, func(_ farm.QuotaName, value *float64) bool { return value == nil })
	for i, text := range r.Default {
		quota, pointer := farm.QuotaName(text), strict.Pointer("/default", strconv.Itoa(i))
		switch {
		case text == runtimesName && runtimes == nil:
			runtimes = &[]string{}
		case text == hostsName && hosts == nil:
			hosts = &store.TenantHosts{Farm: true}
		case !slices.Contains(farm.QuotaNames(), quota) && text != runtimesName && text != hostsName:
			p.addf(pointer, "%q is not the name of a quota or a setting of tenants", farm.Shorten(text))
		case change[quota] != nil || text == runtimesName || text == hostsName:
			p.addf(pointer, "%s is in set and in default: name it once", text)
		default:
			change[quota] = nil
		}
	}
	if len(change) == 0 && runtimes == nil && hosts == nil {
		p.addf("", "name at least one quota or setting in set or default")
	}
	return s.changeTenant(ctx, p, name, store.TenantChange{Quotas: change, Runtimes: runtimes, Hosts: hosts})
}

// The names of a tenant's lists in requests.
const (
	runtimesName = "runtimes"
	hostsName    = "allow_hosts"
)

// runtimesIn reads the runtimes of a request, which is at a pointer of the body; nil: it leaves them out.
func runtimesIn(p *problems, pointer string, r wire.TenantRequest) *[]string {
	if r.Runtimes != nil {
		p.check(pointer+"/"+runtimesName, farm.CheckRuntimes(*r.Runtimes))
	}
	return r.Runtimes
}

// hostsIn reads the ceiling of hosts of a request, which is at a pointer of the body; nil: it leaves it out.
func hostsIn(p *problems, pointer string, r wire.TenantRequest) *store.TenantHosts {
	if r.AllowHosts == nil {
		return nil
	}
	rules, err := farm.ParseHostRules(*r.AllowHosts)
	p.check(pointer+"/"+hostsName, err)
	return &store.TenantHosts{Rules: rules}
}

// quotasIn reads the quotas of a request, which is at a pointer of the body. Those that it leaves out are nil.
func quotasIn(p *problems, pointer string, r wire.TenantRequest) map[farm.QuotaName]*float64 {
	change := map[farm.QuotaName]*float64{}
	for quota, value := range map[farm.QuotaName]*int{
		farm.QuotaSandboxes: r.MaxSandboxes, farm.QuotaMemoryMB: r.MaxMemoryMB, farm.QuotaGPUs: r.MaxGPUs, farm.QuotaRunning: r.MaxRunning,
		farm.QuotaQueued: r.MaxQueued, farm.QuotaStoredMB: r.MaxStoredMB, farm.QuotaRequests: r.RequestsPerMinute, farm.QuotaConnections: r.MaxConnections,
	} {
		change[quota] = nil
		if value != nil {
			n := float64(*value)
			change[quota] = &n
		}
	}
	change[farm.QuotaCPUs] = r.MaxCPUs
	for _, quota := range farm.QuotaNames() {
		if value := change[quota]; value != nil {
			if err := farm.CheckQuota(quota, *value); err != nil {
				p.check(pointer+"/"+string(quota), err)
			}
		}
	}
	return change
}

func (s *Service) changeTenant(ctx context.Context, p *problems, name string, change store.TenantChange) (wire.Tenant, error) {
	if err := p.err(); err != nil {
		return wire.Tenant{}, err
	}
	if err := s.Store.ChangeTenant(ctx, name, change); err != nil {
		return wire.Tenant{}, err
	}
	s.lists.forget(name)
	s.Logger.InfoContext(ctx, "settings of a tenant changed", "tenant", name)
	return s.tenant(ctx, name)
}

const (
	// listsFor is how long the lists of a tenant are cached, in processes other than the one that sets them.
	listsFor = time.Second
	// maxCachedTenants bounds the tenants whose lists are cached.
	maxCachedTenants = 10_000
)

// tenantLists caches which runtimes the sandboxes of a tenant may have, and which hosts they may reach.
type tenantLists struct {
	mu    sync.Mutex
	known map[string]cachedLists
}

type cachedLists struct {
	store.TenantLists
	read time.Time
}

// of returns the lists of a tenant.
func (t *tenantLists) of(ctx context.Context, s *Service, tenant string) (store.TenantLists, error) {
	now := s.Now()
	t.mu.Lock()
	cached, ok := t.known[tenant]
	t.mu.Unlock()
	if age := now.Sub(cached.read); ok && age >= 0 && age < listsFor {
		return cached.TenantLists, nil
	}
	budget.LeaveCore(ctx)
	lists, err := s.Store.TenantLists(ctx, tenant)
	if err != nil {
		return store.TenantLists{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil || len(t.known) >= maxCachedTenants {
		t.known = map[string]cachedLists{}
	}
	t.known[tenant] = cachedLists{lists, now}
	return lists, nil
}

// forget makes the next call read the lists of a tenant.
func (t *tenantLists) forget(tenant string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.known, tenant)
}

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
		return farm.Conflictf("The key %s is one of the farm's settings: remove it from api.keys (SANDFARM_API_KEYS) and restart the API.", id)
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
