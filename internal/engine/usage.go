package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/docker/docker/api/types/container"
)

// Usage is what the engine has counted for a container.
type Usage struct {
	Container string        // its id
	CPU       time.Duration // since it started
	Memory    int64         // bytes in use now, without file pages that the kernel can drop
}

// Usage reads the counters of a running container, by its id or name. A container that does not run has none: ok is false.
func (e *Engine) Usage(ctx context.Context, id string) (u Usage, ok bool, err error) {
	err = e.call(ctx, readTimeout, "read container's counters", func(ctx context.Context) error {
		answer, err := e.cli.ContainerStatsOneShot(ctx, id)
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		var s container.StatsResponse
		if err := json.NewDecoder(answer.Body).Decode(&s); err != nil {
			return fmt.Errorf("decode counters: %w", err)
		}
		idle := s.MemoryStats.Stats["inactive_file"]
		if total, v1 := s.MemoryStats.Stats["total_inactive_file"]; v1 {
			idle = total
		}
		u = Usage{Container: s.ID, CPU: time.Duration(s.CPUStats.CPUUsage.TotalUsage), Memory: int64(s.MemoryStats.Usage - min(idle, s.MemoryStats.Usage))} //nolint:gosec // bytes of memory
		ok = s.ID != "" && u.CPU > 0
		return nil
	})
	return u, ok, err
}
