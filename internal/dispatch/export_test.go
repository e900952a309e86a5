package dispatch

import "time"

// SetNow gives the dispatcher another clock.
func (d *Dispatcher) SetNow(now func() time.Time) { d.now = now }
