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

// rateMinutes is over how many whole minutes the rates of queues are a mean.
const rateMinutes = 5

// rates is how many jobs of each queue ended in a minute.
func (s *Service) rates(ctx context.Context) (map[string]float64, error) {
	known, err := s.Store.Activity(ctx)
	if err != nil {
		return nil, err
	}
	rates, now := map[string]float64{}, farm.MinuteOf(s.Now())
	for _, m := range known {
		if m.At < now && m.At >= now-rateMinutes {
			for queue, n := range m.Queues {
				rates[queue] += float64(n) / rateMinutes
			}
		}
	}
	return rates, nil
}

// FleetEvents lists what happened to workers and nodes, the newest first. limit is from 1 to farm.MaxFleetEvents.
func (s *Service) FleetEvents(ctx context.Context, limit int) (wire.Items[wire.FleetEvent], error) {
	events, err := s.Store.FleetEvents(ctx, limit)
	if err != nil {
		return wire.Items[wire.FleetEvent]{}, err
	}
	list := wire.Items[wire.FleetEvent]{Items: make([]wire.FleetEvent, len(events))}
	for i, e := range events {
		list.Items[i] = wire.FleetEvent{
			ID: e.ID, At: e.At.UTC(), Kind: string(e.Kind), Node: e.Node, Host: e.Host, WorkerID: e.Worker, Jobs: e.Jobs, Sandboxes: e.Sandboxes, Detail: e.Detail,
		}
	}
	return list, nil
}
