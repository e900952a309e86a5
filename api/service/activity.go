package service

import (
	"context"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Activity lists every minute of the last hour, the oldest first, with what became of the jobs that ended in it. The last one is not over.
func (s *Service) Activity(ctx context.Context) (wire.Items[wire.Minute], error) {
	known, err := s.Store.Activity(ctx)
	if err != nil {
		return wire.Items[wire.Minute]{}, err
	}
	byMinute := make(map[int64]farm.Minute, len(known))
	for _, m := range known {
		byMinute[m.At] = m
	}
	const minutes = int64(farm.ActivityKept / time.Minute)
	now := farm.MinuteOf(s.Now())
	list := wire.Items[wire.Minute]{Items: make([]wire.Minute, 0, minutes)}
	for at := now - minutes + 1; at <= now; at++ {
		m := byMinute[at]
		mean := func(sum int64) float64 { return float64(sum) / float64(max(m.Ended, 1)) }
		list.Items = append(list.Items, wire.Minute{
			At: time.Unix(at*60, 0).UTC(), Ended: m.Ended, Failed: m.Failed, WaitMS: mean(m.WaitMS), MaxWaitMS: float64(m.MaxWaitMS), RunMS: mean(m.RunMS),
		})
	}
	return list, nil
}
