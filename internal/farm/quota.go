package farm

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// NoQuota is the value of a quota without a bound.
const NoQuota = -1

// Quotas bound what one tenant may have at once. NoQuota (-1) means no bound, 0 means none at all. The zero struct means DefaultQuotas.
type Quotas struct {
	MaxSandboxes      int     `toml:"max_sandboxes" min:"-1" doc:"Open sandboxes of a tenant. -1: no bound, as for every quota."`
	MaxMemoryMB       int     `toml:"max_memory_mb" min:"-1" doc:"MiB of memory of a tenant's open sandboxes, together."`
	MaxCPUs           float64 `toml:"max_cpus" min:"-1" doc:"Cores of a tenant's open sandboxes, together."`
	MaxGPUs           int     `toml:"max_gpus" min:"-1" doc:"GPUs of a tenant's open sandboxes, together."`
	MaxRunning        int     `toml:"max_running" min:"-1" doc:"Jobs of a tenant that run at once. More stay queued, without an error. Reads of files and what ends or stops something do not count."`
	MaxQueued         int     `toml:"-" doc:"Unfinished jobs of a tenant. Its default is Limits.MaxQueued."`
	MaxStoredMB       int     `toml:"max_stored_mb" min:"-1" doc:"MiB of a tenant's artifacts, waiting uploads and linked files (48 KiB more for each), hibernated sandboxes, and long requests, results and events, together. New artifacts beyond it stay in the sandbox, uploads, links and long requests are refused, and long output is cut."`
	RequestsPerMinute int     `toml:"requests_per_minute" min:"-1" doc:"API requests of a tenant in a minute, among them each job of a batch, each message to a kernel of Jupyter and, after the first 20, each 20 files of an upload that go through the object store. As many may come at once; then one more for each part of the minute."`
	MaxConnections    int     `toml:"max_connections" min:"-1" doc:"API requests of a tenant that are answered at once: waits, event streams, MCP calls and uploads among them."`
}

// QuotaName names one of the quotas.
type QuotaName string

// The quotas.
const (
	QuotaSandboxes   QuotaName = "max_sandboxes"
	QuotaMemoryMB    QuotaName = "max_memory_mb"
	QuotaCPUs        QuotaName = "max_cpus"
	QuotaGPUs        QuotaName = "max_gpus"
	QuotaRunning     QuotaName = "max_running"
	QuotaQueued      QuotaName = "max_queued"
	QuotaStoredMB    QuotaName = "max_stored_mb"
	QuotaRequests    QuotaName = "requests_per_minute"
	QuotaConnections QuotaName = "max_connections"
)

// QuotaNames lists the quotas, in the order in which they are shown.
func QuotaNames() []QuotaName {
	return []QuotaName{
		QuotaSandboxes, QuotaMemoryMB, QuotaCPUs, QuotaGPUs, QuotaRunning, QuotaQueued, QuotaStoredMB, QuotaRequests, QuotaConnections,
	}
}

// DefaultQuotas bound nothing but unfinished jobs, so that a farm of one tenant needs no quotas.
func DefaultQuotas() Quotas {
	q := Quotas{MaxQueued: defaultMaxQueued}
	for _, name := range QuotaNames() {
		if name != QuotaQueued {
			q.Set(name, NoQuota)
		}
	}
	return q
}

// Get is the value of a quota; NoQuota for an unknown name.
func (q Quotas) Get(name QuotaName) float64 {
	switch name {
	case QuotaCPUs:
		return q.MaxCPUs
	default:
		if at := q.whole(name); at != nil {
			return float64(*at)
		}
		return NoQuota
	}
}

// Set sets a quota to a value that CheckQuota accepts; an unknown name changes nothing.
func (q *Quotas) Set(name QuotaName, value float64) {
	if name == QuotaCPUs {
		q.MaxCPUs = value
	} else if at := q.whole(name); at != nil {
		*at = int(value)
	}
}

func (q *Quotas) whole(name QuotaName) *int {
	switch name {
	case QuotaSandboxes:
		return &q.MaxSandboxes
	case QuotaMemoryMB:
		return &q.MaxMemoryMB
	case QuotaGPUs:
		return &q.MaxGPUs
	case QuotaRunning:
		return &q.MaxRunning
	case QuotaQueued:
		return &q.MaxQueued
	case QuotaStoredMB:
		return &q.MaxStoredMB
	case QuotaRequests:
		return &q.RequestsPerMinute
	case QuotaConnections:
		return &q.MaxConnections
	default:
		return nil
	}
}

// MaxQuota is the largest value of a quota. Larger ones would be no bound in practice, and sums of them would lose digits.
const MaxQuota = 1_000_000_000

// CheckQuota refuses a value that a quota cannot have.
func CheckQuota(name QuotaName, value float64) error {
	switch {
	case !slices.Contains(QuotaNames(), name):
		return Invalidf("%q is not a quota; there are %s", name, quotaList())
	case value == NoQuota:
		return nil
	case math.IsNaN(value) || value < 0 || value > MaxQuota:
		return Invalidf("%s must be from 0 to %d, or -1 for no bound", name, MaxQuota)
	case name != QuotaCPUs && value != math.Trunc(value):
		return Invalidf("%s must be a whole number", name)
	}
	return nil
}

func quotaList() string {
	names := QuotaNames()
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = string(name)
	}
	return strings.Join(out, ", ")
}

// QuotaUse says how much of a quota is used, with the unit of the quota's name.
type QuotaUse struct {
	Name  QuotaName
	Limit float64 // NoQuota: no bound
	Used  float64

	RetryAfter time.Duration // of a refusal: when there is room again; 0: not known
	Never      bool          // of a refusal: the request alone needs more than the quota allows, so no retry can succeed
}

// quotaAdvice is what the caller can do about a quota that is used up.
var quotaAdvice = map[QuotaName]string{
	QuotaSandboxes:   "Close a sandbox",
	QuotaMemoryMB:    "Close a sandbox, ask for less memory",
	QuotaCPUs:        "Close a sandbox, ask for fewer cores",
	QuotaGPUs:        "Close a sandbox with a GPU",
	QuotaQueued:      "Try again when some have finished",
	QuotaStoredMB:    "Delete artifacts",
	QuotaRequests:    "Send fewer requests",
	QuotaConnections: "Close event streams or waits",
}

// smallerAdvice is what the caller can do about a request that needs more than the whole quota.
var smallerAdvice = map[QuotaName]string{
	QuotaMemoryMB: "Ask for less memory, or ask",
	QuotaCPUs:     "Ask for fewer cores, or ask",
	QuotaGPUs:     "Ask for fewer GPUs, or ask",
	QuotaStoredMB: "Send less, or ask",
}

// QuotaError is the refusal of a request that needs more of a quota than is left: CodeExhausted, with the numbers for the caller.
// It is Never if the request needs more than the quota allows in all.
func QuotaError(use QuotaUse, more float64) *Error {
	use.Never = more > use.Limit
	text := fmt.Sprintf("%s used, and this request needs %s more. %s, or ask", quotaUsed(use), use.amount(more), quotaAdvice[use.Name])
	if use.Never {
		text = fmt.Sprintf("this request alone needs %s, so it can never succeed. %s", use.amount(more), cmp.Or(smallerAdvice[use.Name], "Ask"))
	}
	e := Errorf(CodeExhausted, "The quota %s of your tenant allows %s: %s the farm's operator to raise it.", use.Name, use.amount(use.Limit), text)
	e.Quota = &use
	return e
}

// amount is a value of the quota with its unit.
func (u QuotaUse) amount(value float64) string {
	if u.Name == QuotaMemoryMB || u.Name == QuotaStoredMB {
		return QuotaText(value) + " MiB"
	}
	return QuotaText(value)
}

func quotaUsed(use QuotaUse) string {
	if use.Used == 1 {
		return use.amount(1) + " is"
	}
	return use.amount(use.Used) + " are"
}

// QuotaText writes a value of a quota without needless digits; NoQuota as "no bound".
func QuotaText(value float64) string {
	if value == NoQuota {
		return "no bound"
	}
	return strconv.FormatFloat(math.Round(value*1000)/1000, 'f', -1, 64)
}

// Validate reports every value that a quota cannot have.
func (q Quotas) Validate() error {
	var wrong []string
	for _, name := range QuotaNames() {
		if err := CheckQuota(name, q.Get(name)); err != nil {
			wrong = append(wrong, "quotas."+MessageOf(err))
		}
	}
	if wrong == nil {
		return nil
	}
	return fmt.Errorf("%s", strings.Join(wrong, "; "))
}

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
	Subject   string    `json:"subject,omitempty"`    // the id or the tenant in the path, such as a sandbox, the key that was made, or the process that a tool started or ended
	JobID     string    `json:"job_id,omitempty"`     // of the job that was accepted
	SandboxID string    `json:"sandbox_id,omitempty"` // of that job or process, or of the link that a tool made
	From      string    `json:"from"`                 // address of the caller
	Status    int       `json:"status"`               // of the answer
	RequestID string    `json:"request_id"`
	Missed    int       `json:"missed,omitempty"` // entries before this one that were not written
}
