package tenants

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

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
