package tenants

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

// TenantChange says what changes of a tenant's own settings. What it does not name stays.
type TenantChange struct {
	Quotas   map[farm.QuotaName]*float64 // nil gives a quota its default again
	Runtimes *[]string                   // OCI runtimes that its sandboxes may have, the default first; empty: those of the farm
	Hosts    *TenantHosts                // what its sandboxes may reach at most
}

// ChangeTenant changes a tenant's own settings. A tenant need not exist before. What is in use stays, also when it is more than a quota now
// allows: then new work is refused or waits. CodeInvalid: a value that a setting cannot have.
func (s *Store) ChangeTenant(ctx context.Context, tenant string, change TenantChange) error {
	if !farm.ValidTenant(tenant) {
		return farm.Invalidf("the name of a tenant must be " + farm.TenantNames)
	}
	set, unset := []string{}, []string{}
	if list := change.Runtimes; list != nil {
		switch err := farm.CheckRuntimes(*list); {
		case err != nil:
			return err
		case len(*list) == 0:
			unset = append(unset, runtimesField)
		default:
			set = append(set, runtimesField, strings.Join(*list, ","))
		}
	}
	if hosts := change.Hosts; hosts != nil {
		switch text, err := hosts.text(); {
		case err != nil:
			return err
		case hosts.Farm:
			unset = append(unset, hostsField)
		default:
			set = append(set, hostsField, text)
		}
	}
	for name, value := range change.Quotas {
		if value == nil {
			unset = append(unset, string(name))
			continue
		}
		if err := farm.CheckQuota(name, *value); err != nil {
			return err
		}
		set = append(set, string(name), strconv.FormatFloat(*value, 'f', -1, 64))
	}
	_, err := s.Redis.TxPipelined(ctx, func(p redis.Pipeliner) error {
		if len(set) > 0 {
			p.HSet(ctx, s.Index(tenant, db.IndexQuotas), set)
		}
		if len(unset) > 0 {
			p.HDel(ctx, s.Index(tenant, db.IndexQuotas), unset...)
		}
		return nil
	})
	if err != nil {
		return db.Wrap("change tenant", err)
	}
	return s.StoreTenant(ctx, tenant)
}

// TenantQuotas are the quotas of a tenant: values has all, own those that are not the default.
func (s *Store) TenantQuotas(ctx context.Context, tenant string) (values farm.Quotas, own map[farm.QuotaName]float64, err error) {
	found, err := s.Redis.HGetAll(ctx, s.Index(tenant, db.IndexQuotas)).Result()
	if err != nil {
		return farm.Quotas{}, nil, db.Wrap("read quotas", err)
	}
	values, own = s.quotasOf(found)
	return values, own, nil
}

func (s *Store) quotasOf(found map[string]string) (farm.Quotas, map[farm.QuotaName]float64) {
	values, own := s.Limits.TenantQuotas(), map[farm.QuotaName]float64{}
	for _, name := range farm.QuotaNames() {
		text, ok := found[string(name)]
		if !ok {
			continue
		}
		if n, err := strconv.ParseFloat(text, 64); err == nil {
			values.Set(name, n)
			own[name] = n
		}
	}
	return values, own
}

// QuotaUse reads how much of each quota a tenant uses, in the order of farm.QuotaNames. Requests are those of the last minute that are not yet
// allowed again. own are the quotas that are not the default.
func (s *Store) QuotaUse(ctx context.Context, tenant string) (use []farm.QuotaUse, own map[farm.QuotaName]float64, err error) {
	r, err := s.Run(ctx, "read use of quotas", "quota_use", tenant)
	if err != nil {
		return nil, nil, err
	}
	quotas, own := s.quotasOf(r.Fields(1))
	used := r.Fields(2)
	for _, name := range farm.QuotaNames() {
		use = append(use, farm.QuotaUse{Name: name, Limit: quotas.Get(name), Used: db.Number(used[string(name)])})
	}
	return use, own, nil
}

// Drift is what RepairUse corrected, by what is counted: sandboxes, memory_mb, cpus, gpus, running. The sign says whether it was counted too
// much (positive) or too little. nodes are wrong entries of the index of sandboxes by node.
type Drift map[string]float64

// RepairUse compares the counts behind a tenant's quotas, and the index of its sandboxes by node, with the records, and corrects them.
func (s *Store) RepairUse(ctx context.Context, tenant string) (Drift, error) {
	r, err := s.Run(ctx, "repair use of quotas", "quota_repair", tenant)
	if err != nil {
		return nil, err
	}
	out := Drift{}
	for name, text := range r.Fields(1) {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("repair use of quotas: %s is %q", name, text)
		}
		if n != 0 {
			out[name] = n
		}
	}
	return out, nil
}

// The lists beside the quotas in the hash of a tenant's own settings.
const (
	runtimesField = "runtimes"    // names with commas between them
	hostsField    = "allow_hosts" // rules with a line for each; empty: none
)

// TenantLists are the lists among a tenant's own settings.
type TenantLists struct {
	Runtimes []string // OCI runtimes that its sandboxes may have, the default first; none: those of the farm
	Hosts    TenantHosts
}

// TenantHosts bound what the sandboxes of a tenant may reach, beside the farm's own bound.
type TenantHosts struct {
	Farm  bool // there is no bound but the farm's; Rules are empty
	Rules []farm.HostRule
}

// Covers reports whether a rule of a sandbox is within the bound.
func (h TenantHosts) Covers(r farm.HostRule) bool { return h.Farm || r.Covered(h.Rules) }

// Texts are the rules in their normal form.
func (h TenantHosts) Texts() []string {
	texts := make([]string, len(h.Rules))
	for i, r := range h.Rules {
		texts[i] = r.String()
	}
	return texts
}

func (h TenantHosts) text() (string, error) {
	if len(h.Rules) > farm.MaxTenantHosts {
		return "", farm.Invalidf("there are %d rules; at most %d are allowed", len(h.Rules), farm.MaxTenantHosts)
	}
	return strings.Join(h.Texts(), "\n"), nil
}

// TenantLists reads the lists among a tenant's own settings. A rule that this release cannot read allows nothing.
func (s *Store) TenantLists(ctx context.Context, tenant string) (TenantLists, error) {
	found, err := s.Redis.HMGet(ctx, s.Index(tenant, db.IndexQuotas), runtimesField, hostsField).Result()
	if err != nil {
		return TenantLists{}, db.Wrap("read lists of tenant", err)
	}
	var l TenantLists
	if text, ok := found[0].(string); ok {
		l.Runtimes = strings.Split(text, ",")
	}
	text, own := found[1].(string)
	l.Hosts.Farm = !own
	for line := range strings.Lines(text) {
		if r, err := farm.ParseHostRule(strings.TrimSuffix(line, "\n")); err == nil {
			l.Hosts.Rules = append(l.Hosts.Rules, r)
		}
	}
	return l, nil
}

// connectionLease is how long a request counts against max_connections without RenewConnections: so long do those of an API server that died.
const connectionLease = 15 * time.Second

// RenewConnectionsEvery is how often a server must renew the connections that it serves.
const RenewConnectionsEvery = connectionLease / 3

// Admitted says what is left of requests_per_minute after a request.
type Admitted struct {
	Limited bool          // the tenant has the quota; without it the rest is zero
	Left    int           // requests that are allowed at once
	Full    time.Duration // until as many as the quota are allowed again, in whole seconds
}

type admitArgs struct {
	Rate        int    `lua:"rate"`        // requests in a minute; -1: no bound
	Connections int    `lua:"connections"` // at once; -1: no bound
	ID          string `lua:"id"`
	LeaseMS     int64  `lua:"lease_ms"`
	Count       int    `lua:"count"` // requests that are to be admitted
}

// Admit counts a request of a tenant against requests_per_minute and max_connections, in one step. The request has an id of its own; with
// max_connections it counts until EndConnection. A request beyond one of them is CodeExhausted, with the quota.
func (s *Store) Admit(ctx context.Context, tenant, id string, quotas farm.Quotas) (Admitted, error) {
	r, err := s.Run(ctx, "admit request", "tenant_admit", tenant, admitArgs{
		Rate: quotas.RequestsPerMinute, Connections: quotas.MaxConnections, ID: id, LeaseMS: connectionLease.Milliseconds(), Count: 1,
	})
	if err != nil {
		return Admitted{}, err
	}
	switch r.Text(0) {
	case "rate":
		return Admitted{}, rateError(quotas, time.Duration(r.Number(1))*time.Microsecond)
	case "connections":
		return Admitted{}, farm.QuotaError(farm.QuotaUse{Name: farm.QuotaConnections, Limit: float64(quotas.MaxConnections), Used: db.Number(r.Text(1))}, 1)
	}
	return Admitted{Limited: r.Text(1) != "", Left: r.Number(1), Full: time.Duration(r.Number(2)) * time.Second}, nil
}

// AdmitMore counts further requests of a tenant, which are part of one that was admitted, against requests_per_minute. It returns how many of them
// are admitted, and if these are fewer, beside it the refusal of the others, which is CodeExhausted with the quota.
func (s *Store) AdmitMore(ctx context.Context, tenant string, requests int, quotas farm.Quotas) (int, error) {
	r, err := s.Run(ctx, "admit requests", "tenant_admit", tenant, admitArgs{
		Rate: quotas.RequestsPerMinute, Connections: farm.NoQuota, Count: requests,
	})
	switch {
	case err != nil:
		return 0, err
	case r.Text(0) == "rate":
		return 0, rateError(quotas, time.Duration(r.Number(1))*time.Microsecond)
	case r.Number(3) < requests:
		return r.Number(3), rateError(quotas, time.Minute/time.Duration(quotas.RequestsPerMinute))
	}
	return requests, nil
}

// rateError refuses a request beyond requests_per_minute. The next one is allowed after a while.
func rateError(quotas farm.Quotas, after time.Duration) error {
	rate := float64(quotas.RequestsPerMinute)
	return farm.QuotaError(farm.QuotaUse{Name: farm.QuotaRequests, Limit: rate, Used: rate, RetryAfter: after}, 1)
}

// EndConnection says that a request of Admit is over.
func (s *Store) EndConnection(ctx context.Context, tenant, id string) error {
	return db.Wrap("end connection", s.Redis.ZRem(ctx, s.Index(tenant, db.IndexConnections), id).Err())
}

// RenewConnections keeps requests of Admit counted; call it every RenewConnectionsEvery with the ids of each tenant.
func (s *Store) RenewConnections(ctx context.Context, ids map[string][]string) error {
	now, err := s.Redis.Time(ctx).Result() // leases end by the clock of Redis
	if err != nil {
		return db.Wrap("renew connections", err)
	}
	end := float64(now.Add(connectionLease).UnixMicro())
	_, err = s.Redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		for tenant, of := range ids {
			members := make([]redis.Z, len(of))
			for i, id := range of {
				members[i] = redis.Z{Score: end, Member: id}
			}
			p.ZAdd(ctx, s.Index(tenant, db.IndexConnections), members...)
			p.PExpire(ctx, s.Index(tenant, db.IndexConnections), connectionLease)
		}
		return nil
	})
	return db.Wrap("renew connections", err)
}

const day = 24 * time.Hour

// dayForm is the form of a day, in UTC.
const dayForm = "2006-01-02"

// Usage is what a tenant has used in one day, in UTC.
type Usage struct {
	Day             string  // such as 2026-11-22
	CPUSeconds      float64 // of its sandboxes, by the engine's counters
	MemoryGBSeconds float64 // GiB in use, times seconds
	GPUSeconds      float64 // of leased devices
	SandboxSeconds  float64 // that its sandboxes ran
	StoredGBSeconds float64 // GiB of artifacts, times seconds
}

// Sample is what the engine has counted for a sandbox's container so far.
type Sample struct {
	Sandbox   farm.Ref
	Container string        // the counters of another container begin at 0
	CPU       time.Duration // since the container started
	MemoryKB  int64         // KiB in use now
	GPUs      int           // devices that it leases
}

type usageArgs struct {
	ID        string `lua:"id"`
	Container string `lua:"container"`
	CPU       int64  `lua:"cpu"` // microseconds
	MemoryKB  int64  `lua:"memory_kb"`
	GPUs      int    `lua:"gpus"`
	Day       string `lua:"day"`
	Keep      int    `lua:"keep"`   // seconds
	Recent    int    `lua:"recent"` // samples that the record remembers
}

// AddUsage adds what a sandbox has used since its last sample to its tenant's day, and returns what it added. The same sample again, or one of
// another worker, adds only what is new. A sandbox without a record adds nothing.
func (s *Store) AddUsage(ctx context.Context, sample Sample) (Usage, error) {
	today := s.Now().UTC().Format(dayForm)
	r, err := s.Run(ctx, "add usage", "usage_add", sample.Sandbox.Tenant, usageArgs{
		ID: sample.Sandbox.ID, Container: sample.Container, CPU: sample.CPU.Microseconds(), MemoryKB: sample.MemoryKB, GPUs: sample.GPUs,
		Day: today, Keep: s.usageKeep(), Recent: farm.MaxUseSamples,
	})
	if err != nil {
		return Usage{}, err
	}
	return usageOf(today, r.Fields(1)), nil
}

// AddStored adds the time that a tenant's artifacts were stored since the last call to its day.
func (s *Store) AddStored(ctx context.Context, tenant string) error {
	_, err := s.Run(ctx, "add stored bytes to usage", "usage_stored", tenant, s.Now().UTC().Format(dayForm), s.usageKeep())
	return err
}

func (s *Store) usageKeep() int { return s.Limits.UsageDays * int(day.Seconds()) }

// Usage reads the last days of a tenant, the oldest first, today at the end. Days without use are left out.
func (s *Store) Usage(ctx context.Context, tenant string, days int) ([]Usage, error) {
	days = min(max(days, 1), s.Limits.UsageDays)
	names := make([]string, days)
	found := make([]*redis.MapStringStringCmd, days)
	_, err := s.Redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range names {
			names[i] = s.Now().UTC().AddDate(0, 0, i-days+1).Format(dayForm)
			found[i] = p.HGetAll(ctx, s.Key(tenant, db.KeyUsage, names[i]))
		}
		return nil
	})
	if err != nil {
		return nil, db.Wrap("read usage", err)
	}
	out := []Usage{}
	for i, name := range names {
		if fields := found[i].Val(); len(fields) > 0 {
			out = append(out, usageOf(name, fields))
		}
	}
	return out, nil
}

// usageOf converts the units of the hash: microseconds of CPU, KiB × milliseconds of memory, milliseconds of GPUs and sandboxes, KiB × seconds
// of storage.
func usageOf(name string, fields map[string]string) Usage {
	const kbInGB = 1 << 20
	n := func(field string) float64 {
		v, _ := strconv.ParseFloat(fields[field], 64)
		return v
	}
	return Usage{
		Day: name, CPUSeconds: n("cpu") / 1e6, MemoryGBSeconds: n("mem") / 1000 / kbInGB, GPUSeconds: n("gpu") / 1000,
		SandboxSeconds: n("box") / 1000, StoredGBSeconds: n("stored") / kbInGB,
	}
}

// Tenant is CodeNotFound unless a tenant has had a job or has quotas of its own.
func (s *Store) Tenant(ctx context.Context, name string) error {
	known, err := s.Redis.SIsMember(ctx, s.Farm(db.FarmTenants, ""), name).Result()
	if err == nil && !known {
		return farm.NotFoundf("There is no tenant %.64s. It exists once it has a job or quotas of its own.", name)
	}
	return db.Wrap("look for tenant", err)
}
