package index

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	warnAtOnce = 20          // warnings in a row that are logged
	warnAgain  = time.Second // interval of further ones
)

// pace limits warnings that callers can cause.
type pace struct {
	mu   sync.Mutex
	left float64
	last time.Time
}

// take reports whether one more may be logged.
func (p *pace) take(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last.IsZero() {
		p.left = warnAtOnce
	} else {
		p.left = min(warnAtOnce, p.left+max(0, now.Sub(p.last).Seconds()/warnAgain.Seconds()))
	}
	p.last = now
	if p.left < 1 {
		return false
	}
	p.left--
	return true
}

// warn logs a warning, at level debug if there are too many.
func (x *Index) warn(ctx context.Context, message string, args ...any) {
	level := slog.LevelDebug
	if x.paced.take(time.Now()) {
		level = slog.LevelWarn
	}
	x.log.Log(ctx, level, message, args...)
}
