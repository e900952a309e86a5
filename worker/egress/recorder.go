package egress

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

const (
	// writeEvery is how often the log of a sandbox is written at most.
	writeEvery = time.Second
	// writeTimeout bounds one write; what it did not write comes with the next one.
	writeTimeout = 3 * time.Second
	// maxWaiting is how many entries of a sandbox wait for a write. More are counted.
	maxWaiting = 200
	// maxDenied is how many denied hosts of a sandbox are remembered for the notes of its runs.
	maxDenied = 5
)

// recorder writes the connections of one sandbox to its log, and counts its bytes.
type recorder struct {
	egress     *Egress
	sandbox    farm.Ref
	generation int

	mu      sync.Mutex
	waiting []farm.EgressEntry
	missed  int                // connections since the last one that waits, or is written
	denied  []farm.EgressEntry // the newest that were not reached, by the rules or although they allow it, each host and port once

	used  int64 // of the proxy, as the record has it; used by begin and write only
	known bool  // the record's bytes have been read
	over  bool  // there is no record to write to any more
}

func newRecorder(e *Egress, s *farm.Sandbox) *recorder {
	return &recorder{egress: e, sandbox: s.Ref(), generation: max(s.Generation, 1)}
}

// begin reads how many bytes the sandbox has transferred so far.
func (r *recorder) begin(ctx context.Context) (int64, error) {
	used, err := r.append(ctx, nil, 0)
	if err == nil {
		r.used, r.known = used, true
	}
	return used, err
}

// add takes the report about a connection. It does not block.
func (r *recorder) add(c egressproxy.Connection) {
	r.egress.metrics.count(c)
	entry := farm.EgressEntry{
		At: c.At.UTC(), Host: c.Host, Port: c.Port, Method: c.Method, Verdict: string(c.Verdict), Reason: c.Reason,
		Sent: c.Sent, Received: c.Received, DurationMS: c.Duration.Milliseconds(), Secrets: c.Secrets,
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch c.Reason {
	case egressproxy.ReasonRule, egressproxy.ReasonMethod, egressproxy.ReasonCeiling, egressproxy.ReasonName, egressproxy.ReasonAddress, egressproxy.ReasonConnect:
		r.denied = append(slices.DeleteFunc(r.denied, func(e farm.EgressEntry) bool { return e.Host == c.Host && e.Port == c.Port }), entry)
		r.denied = r.denied[max(0, len(r.denied)-maxDenied):]
	}
	if len(r.waiting) >= maxWaiting {
		r.missed++
		return
	}
	entry.Missed, r.missed = r.missed, 0
	r.waiting = append(r.waiting, entry)
}

// deniedSince lists the newest denied hosts since a time, and reports whether entries wait for a write.
func (r *recorder) deniedSince(at time.Time) (found []farm.EgressEntry, waits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.denied {
		if !e.At.Before(at) {
			found = append(found, e)
		}
	}
	return found, len(r.waiting) > 0
}

// write writes what waits and the bytes that the proxy has transferred, those of open connections included. What other workers have counted
// meanwhile counts against the proxy too.
func (r *recorder) write(ctx context.Context, proxy *egressproxy.Proxy) {
	r.mu.Lock()
	entries := r.waiting
	r.mu.Unlock()
	bytes := proxy.Used() - r.used
	if r.over || len(entries) == 0 && bytes == 0 && r.known {
		return
	}
	total, err := r.append(ctx, entries, bytes)
	switch {
	case farm.CodeOf(err) == farm.CodeNotFound || errors.Is(err, store.ErrFenced):
		r.over = true
	case err != nil:
		r.egress.deps.Log.DebugContext(ctx, "the egress log of a sandbox was not written; it is tried again", "sandbox_id", r.sandbox.ID, "error", err)
		return
	}
	r.mu.Lock()
	r.waiting = append([]farm.EgressEntry(nil), r.waiting[len(entries):]...)
	r.mu.Unlock()
	if r.over {
		return
	}
	r.used, r.known = r.used+bytes, true
	if elsewhere := total - r.used; elsewhere > 0 {
		proxy.Count(elsewhere)
		r.used = total
	}
}

func (r *recorder) append(ctx context.Context, entries []farm.EgressEntry, bytes int64) (int64, error) {
	ctx, done := context.WithTimeout(ctx, writeTimeout)
	defer done()
	return r.egress.deps.Records.AppendEgress(ctx, store.EgressAppend{Sandbox: r.sandbox, Generation: r.generation, Entries: entries, Bytes: bytes})
}
