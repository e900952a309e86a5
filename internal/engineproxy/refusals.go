package engineproxy

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// refusalEvery bounds the log: who sends calls that are refused can send many.
const refusalEvery = time.Second

// refusals logs the first refused call of each second, and how many came between.
type refusals struct {
	log *slog.Logger

	mu      sync.Mutex
	last    time.Time
	skipped int
}

func (r *refusals) note(ctx context.Context, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if !r.last.IsZero() && now.Sub(r.last) < refusalEvery {
		r.skipped++
		return
	}
	r.log.WarnContext(ctx, "call refused", slog.String("reason", message), slog.Int("not_logged_before", r.skipped))
	r.last, r.skipped = now, 0
}
