package dispatch

import "time"

// SetNow sets the dispatcher's clock.
func (d *Dispatcher) SetNow(now func() time.Time) { d.now = now }
