package dispatch

import "time"

// SweepBatch and SweepPace are rules of the sweep.
const (
	SweepBatch = sweepBatch
	SweepPace  = sweepPace
)

// Looked notes that a sweep has looked at a number of a tenant's jobs.
func (d *Dispatcher) Looked(tenant string, jobs int) { d.looked(tenant, jobs) }

// SetNow sets the dispatcher's clock.
func (d *Dispatcher) SetNow(now func() time.Time) { d.now = now }
