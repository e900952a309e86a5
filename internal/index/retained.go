package index

import (
	"slices"
	"time"
)

const (
	retainFor = 2 * time.Minute // how long a file without a cache is retained: installers read one in several requests
	retainMax = 2 << 30         // total bytes of such files
)

// retained is a complete file that no cache has, kept for a while.
type retained struct {
	flight *flight
	id     string
	timer  *time.Timer
}

// retain keeps a complete file in the table. The caller holds the mutex.
func (x *Index) retain(f *flight, id string) {
	if x.closed || f.size > retainMax {
		x.removeLocked(f, id)
		return
	}
	p := &retained{flight: f, id: id}
	p.timer = time.AfterFunc(retainFor, func() { x.expire(p) })
	f.retained = true
	x.retained = append(x.retained, p)
	for total := x.retainedBytes(); total > retainMax; total = x.retainedBytes() {
		x.discard(x.retained[0])
	}
}

func (x *Index) retainedBytes() (n int64) {
	for _, p := range x.retained {
		n += p.flight.size
	}
	return n
}

// expire removes a retained file that was not used for a while.
func (x *Index) expire(p *retained) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !slices.Contains(x.retained, p) {
		return
	}
	if idle := time.Since(p.flight.left); p.flight.readers > 0 || idle < retainFor {
		p.timer.Reset(retainFor)
		return
	}
	x.discard(p)
}

// discard removes a retained file. The caller holds the mutex.
func (x *Index) discard(p *retained) {
	p.timer.Stop()
	x.retained = slices.DeleteFunc(x.retained, func(q *retained) bool { return q == p })
	x.removeLocked(p.flight, p.id)
}
