package db

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Tenants lists every tenant for which a job was accepted, a key made, or a setting changed.
func (d *DB) Tenants(ctx context.Context) ([]string, error) {
	names, err := d.Redis.SMembers(ctx, d.Farm(FarmTenants, "")).Result()
	return names, Wrap("list tenants", err)
}

// RememberTenant stores a tenant's name for Tenants, unless it did so within the last minute.
func (d *DB) RememberTenant(ctx context.Context, tenant string) error {
	now := time.Now()
	if d.tenants.fresh(tenant, now) {
		return nil
	}
	if err := d.StoreTenant(ctx, tenant); err != nil {
		return err
	}
	d.tenants.add(tenant, now)
	return nil
}

// StoreTenant stores the name of a tenant.
func (d *DB) StoreTenant(ctx context.Context, tenant string) error {
	return Wrap("store tenant", d.Redis.SAdd(ctx, d.Farm(FarmTenants, ""), tenant).Err())
}

// RememberOnNode stores that a tenant is about to have a sandbox on a node, unless it did so within the last minute.
func (d *DB) RememberOnNode(ctx context.Context, node, tenant string) error {
	if node == "" {
		return nil
	}
	name, now := node+" "+tenant, time.Now()
	if d.onNodes.fresh(name, now) {
		return nil
	}
	if err := d.StoreOnNode(ctx, node, tenant); err != nil {
		return err
	}
	d.onNodes.add(name, now)
	return nil
}

// StoreOnNode stores that a tenant has, or is about to have, a sandbox on a node.
func (d *DB) StoreOnNode(ctx context.Context, node, tenant string) error {
	return Wrap("store tenant of a node", d.Redis.SAdd(ctx, d.Key(SlotNodes, KeyTenantsOf, node), tenant).Err())
}

// recent remembers for a while which names are stored, to save the call.
type recent struct {
	mu     sync.Mutex
	stored map[string]time.Time
}

// recentTTL bounds how long a tenant may be missing in a Redis that lost its data.
const recentTTL = time.Minute

func newRecent() *recent { return &recent{stored: map[string]time.Time{}} }

func (c *recent) fresh(name string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.stored[name]
	return ok && now.Sub(at) < recentTTL
}

func (c *recent) add(name string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stored[name] = now
}

const (
	memoryUseTTL = time.Second // how long the last reading of Redis's memory is used
	infoTimeout  = time.Second // a Redis that hangs here also fails the call that follows, with a better error
)

// memoryUse remembers how full Redis is.
type memoryUse struct {
	mu   sync.Mutex
	at   time.Time
	info Memory
}

// Memory is what Redis says of its memory, in bytes. A limit of 0 means that it has none.
type Memory struct{ Used, Limit float64 }

// Memory reads how full Redis is.
func (d *DB) Memory(ctx context.Context) (Memory, error) {
	ctx, done := context.WithTimeout(ctx, infoTimeout)
	defer done()
	text, err := d.Redis.Info(ctx, "memory").Result()
	if reply, ok := errors.AsType[redis.Error](err); err != nil && (!ok || Transient(reply)) {
		return Memory{}, Wrap("read the memory of Redis", err)
	}
	var info Memory
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "used_memory":
			info.Used, _ = strconv.ParseFloat(value, 64)
		case "maxmemory":
			info.Limit, _ = strconv.ParseFloat(value, 64)
		}
	}
	return info, nil
}

// Above reports whether Redis uses a share of its memory. Without a limit it never does.
func (m Memory) Above(share float64) bool { return m.Limit > 0 && m.Used >= share*m.Limit }

// RecentMemory is how full Redis was within memoryUseTTL, or when it last said so.
func (d *DB) RecentMemory(ctx context.Context) Memory {
	d.memory.mu.Lock()
	defer d.memory.mu.Unlock()
	if now := time.Now(); now.Sub(d.memory.at) >= memoryUseTTL {
		if info, err := d.Memory(ctx); err == nil {
			d.memory.at, d.memory.info = now, info
		}
	}
	return d.memory.info
}
