package farm

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Scope is a right that an API key has.
type Scope string

// The scopes of API keys.
const (
	ScopeRun     Scope = "run"     // everything with the tenant's own sandboxes, jobs and files; includes read
	ScopeRead    Scope = "read"    // read them, start no work
	ScopeMetrics Scope = "metrics" // GET /metrics alone
	ScopeAdmin   Scope = "admin"   // keys, tenants and audit of the farm, and its whole fleet; includes read and metrics
)

// Scopes lists every scope.
func Scopes() []Scope { return []Scope{ScopeRun, ScopeRead, ScopeMetrics, ScopeAdmin} }

// Allows reports whether one of these scopes is the needed one or includes it.
func Allows(scopes []Scope, need Scope) bool {
	return slices.ContainsFunc(scopes, func(s Scope) bool {
		switch s {
		case need:
			return true
		case ScopeRun:
			return need == ScopeRead
		case ScopeAdmin:
			return need == ScopeRead || need == ScopeMetrics
		default:
			return false
		}
	})
}

// Bounds of a key's record.
const (
	MaxTenantBytes  = 64
	MaxKeyNameBytes = 100
	MaxKeySeconds   = 10 * 365 * 24 * 3600 // until a key that expires does
)

// Key is the record of an API key that was made at run time. The key itself is not part of it: Redis knows only its SHA-256.
type Key struct {
	ID        string    `json:"id"`
	Tenant    string    `json:"tenant"`         // that owns what is created with the key
	Name      string    `json:"name,omitempty"` // free text of the operator
	Scopes    []Scope   `json:"scopes"`
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at,omitzero"` // zero: never

	LastUsedAt time.Time `json:"-"` // accurate to about a minute; zero: never
}

// Expired reports whether the key is no longer valid at a time.
func (k Key) Expired(now time.Time) bool { return !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt) }

// TenantNames says which names tenants may have, for errors.
const TenantNames = "1 to 64 letters, digits, dots, dashes and underscores, not only dots, and none of fleet, nodes, pool and room"

// reservedTenants are names that Redis keys of the farm itself have in the place of a tenant's.
var reservedTenants = []string{"fleet", "nodes", "pool", "room"}

// ValidTenant reports whether s can name a tenant, see TenantNames. A name is part of the names of Redis keys and S3 objects, so no other
// characters are allowed, and S3 services refuse "." and ".." between slashes.
func ValidTenant(s string) bool {
	return strings.Trim(s, ".") != "" && len(s) <= MaxTenantBytes && !slices.Contains(reservedTenants, s) && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
	})
}

// ParseScopes checks the names of scopes and drops repeated ones. The error names the wrong one.
func ParseScopes(names []string) ([]Scope, error) {
	var out []Scope
	for _, name := range names {
		scope := Scope(name)
		if !slices.Contains(Scopes(), scope) {
			return nil, Invalidf("%q is not a scope: use run, read, metrics or admin.", fmt.Sprintf("%.40s", name))
		}
		if !slices.Contains(out, scope) {
			out = append(out, scope)
		}
	}
	return out, nil
}

// AuditEntry says who asked the farm for what, and what came of it. It holds no code, environment, body, query or link.
type AuditEntry struct {
	ID        string    `json:"id"`
	At        time.Time `json:"at"`
	Tenant    string    `json:"tenant"`               // "" for a request whose key is not valid
	KeyID     string    `json:"key_id,omitempty"`     // "" without a key, "local" for the operator on the farm's machine
	Route     string    `json:"route"`                // method and path template
	Subject   string    `json:"subject,omitempty"`    // the id in the path, such as that of a sandbox
	JobID     string    `json:"job_id,omitempty"`     // of the job that was accepted
	SandboxID string    `json:"sandbox_id,omitempty"` // of that job
	From      string    `json:"from"`                 // address of the caller
	Status    int       `json:"status"`               // of the answer
	RequestID string    `json:"request_id"`
	Missed    int       `json:"missed,omitempty"` // entries before this one that were not written
}
