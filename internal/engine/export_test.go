package engine

import (
	"context"
	"time"
)

// Of images that are read at the start of a worker. They are for tests.

// EndDeadPreload is endDeadPreload.
func (e *Engine) EndDeadPreload(ctx context.Context, now time.Time) error {
	return e.endDeadPreload(ctx, now)
}

// PreloadLasts is how long reading may take.
const PreloadLasts = preloadTimeout + createTimeout
