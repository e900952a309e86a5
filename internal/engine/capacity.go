package engine

import (
	"context"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Capacity is the memory and the cores of the engine's host, as the engine reports them.
func (e *Engine) Capacity(ctx context.Context) (farm.Capacity, error) {
	got, err := e.systemInfo(ctx)
	return farm.Capacity{MemoryMB: int(got.MemTotal >> 20), CPUs: float64(got.NCPU)}, err
}
