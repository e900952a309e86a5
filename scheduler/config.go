package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Config holds the settings of a scheduler.
type Config struct {
	ExpireEvery  time.Duration `toml:"expire_every" default:"1s" min:"10ms" doc:"How often the scheduler closes sandboxes whose deadline has passed."`
	SweepEvery   time.Duration `toml:"sweep_every" default:"2s" min:"10ms" doc:"How often the scheduler enqueues jobs that are in no queue, and hands jobs of dead workers to others."`
	RetainEvery  time.Duration `toml:"retain_every" default:"1m" min:"10ms" doc:"How often expired artifacts are removed from the object store."`
	TrimEvery    time.Duration `toml:"trim_every" default:"1m" min:"10ms" doc:"How often records beyond their bounds are removed: see limits.max_finished and limits.retention_seconds. As often the counts behind quotas are compared with the records."`
	PoolEvery    time.Duration `toml:"pool_every" default:"5s" min:"10ms" doc:"How often the warm pool is compared with its targets."`
	NodePatience time.Duration `toml:"node_patience" default:"5m" min:"1s" doc:"How long a node may be without a worker before it is ended: its sandboxes and their jobs are lost, creations continue on other nodes, and what it holds is released. Time in which the whole farm is stopped does not count. Raise it before maintenance of a node that takes longer."`
	Lifecycle    bool          `toml:"lifecycle_rules" default:"true" doc:"Set lifecycle rules in the bucket, so that the object store removes what the farm should have removed days before."`
	Jitter       float64       `toml:"jitter" default:"0.1" min:"0.01" max:"0.9" doc:"Random part of its interval by which a loop may run earlier, so that schedulers started together do not stay in step."`

	// Settle is how long a new leader waits before it takes workers for dead: half of store.HeartbeatTTL by default; negative: not at all. If Redis was away, the
	// lease has lapsed like the registrations of all workers, and they need two heartbeats to be back.
	Settle time.Duration `toml:"-"`
	Limits farm.Limits   `toml:"-"`
}

func (c Config) withDefaults() Config {
	c.ExpireEvery = cmp.Or(c.ExpireEvery, time.Second)
	c.SweepEvery = cmp.Or(c.SweepEvery, 2*time.Second)
	c.RetainEvery = cmp.Or(c.RetainEvery, time.Minute)
	c.TrimEvery = cmp.Or(c.TrimEvery, time.Minute)
	c.PoolEvery = cmp.Or(c.PoolEvery, 5*time.Second)
	c.Settle = cmp.Or(c.Settle, store.HeartbeatTTL/2)
	c.NodePatience = cmp.Or(c.NodePatience, 5*time.Minute)
	c.Jitter = cmp.Or(c.Jitter, 0.1)
	if c.Limits == (farm.Limits{}) {
		c.Limits = farm.DefaultLimits()
	}
	return c
}

// Validate reports every problem of the settings. Zero fields count as their defaults.
func (c Config) Validate() error { return c.withDefaults().validate() }

func (c Config) validate() error {
	var errs []error
	for _, s := range []struct {
		name string
		d    time.Duration
	}{{"expire_every", c.ExpireEvery}, {"sweep_every", c.SweepEvery}, {"retain_every", c.RetainEvery}, {"trim_every", c.TrimEvery}, {"pool_every", c.PoolEvery}} {
		if s.d < 10*time.Millisecond {
			errs = append(errs, fmt.Errorf("scheduler.%s is %s; it must be at least 10ms", s.name, s.d))
		}
	}
	if c.NodePatience < time.Second {
		errs = append(errs, fmt.Errorf("scheduler.node_patience is %s; it must be at least 1s", c.NodePatience))
	}
	if c.Jitter < 0.01 || c.Jitter > 0.9 {
		errs = append(errs, fmt.Errorf("scheduler.jitter is %g; it must be from 0.01 to 0.9", c.Jitter))
	}
	return errors.Join(errs...)
}
