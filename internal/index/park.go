package index

import (
	"slices"
	"time"
)

const (
	parkFor = 2 * time.Minute // how long a file is at hand that no cache holds: installers read one in several requests
	parkMax = 2 << 30         // how many bytes of such files
)

// parked is a file that no cache holds and that is at hand for a while.
type parked struct {
	flight *flight
	id     string
	timer  *time.Timer
}

// park leaves a whole file in the table. The mutex is held.
func (x *Index) park(f *flight, id string) {
	if x.closed || f.size > parkMax {
		x.drop(f, id)
		return
	}
	p := &parked{flight: f, id: id}
	p.timer = time.AfterFunc(parkFor, func() { x.expire(p) })
	f.parked = true
	x.parked = append(x.parked, p)
	for total := x.parkedBytes(); total > parkMax; total = x.parkedBytes() {
		x.unpark(x.parked[0])
	}
}

func (x *Index) parkedBytes() (n int64) {
	for _, p := range x.parked {
		n += p.flight.size
	}
	return n
}

// expire removes a file that was not used for a while.
func (x *Index) expire(p *parked) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !slices.Contains(x.parked, p) {
		return
	}
	if idle := time.Since(p.flight.left); p.flight.readers > 0 || idle < parkFor {
		p.timer.Reset(parkFor)
		return
	}
	x.unpark(p)
}

// unpark removes a file. The mutex is held.
func (x *Index) unpark(p *parked) {
	p.timer.Stop()
	x.parked = slices.DeleteFunc(x.parked, func(q *parked) bool { return q == p })
	x.drop(p.flight, p.id)
}
