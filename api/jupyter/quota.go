package jupyter

import (
	"context"
	"errors"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// quotaPatience is how long a message waits for requests_per_minute before it is refused.
	quotaPatience = 10 * time.Minute
	// minQuotaPause and maxQuotaPause bound the time between two tries.
	minQuotaPause, maxQuotaPause = time.Second, time.Minute
)

// More counts further requests of a tenant against requests_per_minute, as access.Gate.More does.
type More func(ctx context.Context, tenant string, requests int) (admitted int, err error)

// admit counts one request of the kernel's tenant. The error is CodeExhausted, with the quota.
func (k *kernel) admit(ctx context.Context) error {
	_, err := k.server.cfg.More(ctx, k.ref.Tenant, 1)
	return err
}

// free reports whether the work is no request to the farm: it is answered here, or its job was counted.
func (w *work) free() bool {
	switch w.header.Type {
	case "execute_request":
		return w.job != "" || w.cell == nil || w.cell.Code == "" && len(w.cell.Expressions) == 0
	case "kernel_info_request":
		return true
	default:
		kind, _ := known(w.header.Type)
		return kind == ""
	}
}

// count counts a message whose turn it is. One beyond the quota waits, twice as long as until the next request is allowed: a notebook leaves half
// of what the quota allows to its tenant's other requests, such as the one that interrupts it.
func (s *session) count(w *work) {
	ctx, done := s.context()
	defer done()
	now := s.kernel.server.cfg.Now()
	if w.patience.IsZero() {
		w.patience = now.Add(quotaPatience)
	}
	err := s.kernel.admit(ctx)
	refusal, ok := errors.AsType[*farm.Error](err)
	if err == nil || !ok || refusal.Quota == nil || !now.Before(w.patience) {
		s.mu.Lock()
		defer s.mu.Unlock()
		w.counted, w.refusal = true, err
		return
	}
	_ = pause(ctx, min(max(2*refusal.Quota.RetryAfter, minQuotaPause), maxQuotaPause)) // the next try notices the end
}

// dropUncounted ends the cells of a session that waits for the quota: nothing of it runs that an interrupt could end.
func (s *session) dropUncounted() {
	s.mu.Lock()
	waits := s.current == nil && len(s.queue) > 0 && !s.queue[0].counted && !s.queue[0].free()
	s.mu.Unlock()
	if waits {
		s.drop(cellHere)
	}
}
