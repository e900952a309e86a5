package engine

import (
	"context"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Capacity is the memory and the cores that the engine's host has, as the engine counts them.
func (e *Engine) Capacity(ctx context.Context) (farm.Capacity, error) {
	got, err := e.systemInfo(ctx)
	return farm.Capacity{MemoryMB: int(got.MemTotal >> 20), CPUs: float64(got.NCPU)}, err
}
