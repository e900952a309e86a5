package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// benchNeighbour compares print(1) while code of another sandbox sleeps with the same on a quiet farm. Blocks of both
// alternate.
func benchNeighbour(ctx context.Context, b *bench) ([]row, error) {
	id, err := b.sandbox(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = b.Close(ctx, id) }()
	other, err := b.sandbox(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = b.Close(ctx, other) }()
	var quiet, beside []time.Duration
	block := func(into *[]time.Duration) error {
		for n := range 60 {
			_, took, err := b.execute(ctx, id, "print(1)")
			if err != nil {
				return err
			}
			if n >= 10 { // warm
				*into = append(*into, took)
			}
		}
		return nil
	}
	for range 4 {
		if err := block(&quiet); err != nil {
			return nil, err
		}
		sleeping, err := b.Execute(ctx, other, wire.ExecuteRequest{Code: "import time; time.sleep(10)"})
		if err != nil {
			return nil, err
		}
		if err := block(&beside); err != nil {
			return nil, err
		}
		job, err := b.Job(ctx, sleeping.ID)
		if err != nil {
			return nil, err
		}
		if job.Final() {
			return nil, fmt.Errorf("the sleep ended before the block: %s", job.State)
		}
		if _, err := b.Interrupt(ctx, other, client.WithWait(30*time.Second)); err != nil {
			return nil, err
		}
		if _, err := b.Wait(ctx, sleeping.ID); err != nil {
			return nil, err
		}
	}
	return []row{{
		what: "`print(1)` while another client's code sleeps 10 s, p50 (p95)", ours: fmt.Sprintf("%s (%s)", ms(quantile(beside, 0.5)), ms(quantile(beside, 0.95))),
		other: fmt.Sprintf("quiet %s (%s)", ms(quantile(quiet, 0.5)), ms(quantile(quiet, 0.95))), ratio: times(quantile(beside, 0.5), quantile(quiet, 0.5)), aim: "≤ 1.2×",
	}}, nil
}
