package service

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// readyTimeout bounds the check of each part: a readiness check must not hang.
const readyTimeout = 3 * time.Second

// Images lists the images that live workers offer.
func (s *Service) Images(ctx context.Context) (wire.Items[wire.Image], error) {
	images, err := s.offered(ctx, true)
	if err != nil {
		return wire.Items[wire.Image]{}, err
	}
	list := wire.Items[wire.Image]{Items: make([]wire.Image, len(images))}
	for i, image := range images {
		list.Items[i] = wire.Image{Name: image.Name, Description: image.Description, Languages: emptyIfNil(image.Languages), Size: image.Size}
	}
	return list, nil
}

// Workers lists the live workers.
func (s *Service) Workers(ctx context.Context) (wire.Items[wire.Worker], error) {
	workers, err := s.Store.Workers(ctx)
	if err != nil {
		return wire.Items[wire.Worker]{}, err
	}
	drains, err := s.drainsOf(ctx, workers)
	if err != nil {
		return wire.Items[wire.Worker]{}, err
	}
	list := wire.Items[wire.Worker]{Items: make([]wire.Worker, len(workers))}
	for i, w := range workers {
		images := make([]string, len(w.Images))
		for j, image := range w.Images {
			images[j] = image.Name
		}
		list.Items[i] = wire.Worker{
			ID: w.ID, Node: w.Node, Host: w.Host, Version: w.Version, Queues: emptyIfNil(w.Queues), Images: images, Slots: w.Slots,
			Running: w.Running, Sandboxes: w.Sandboxes, StartedAt: w.StartedAt.UTC(), SeenAt: w.SeenAt.UTC(), Problem: w.Problem,
			Capacity: wire.Room(w.Capacity), Promised: wire.Room(w.Reserved), Machine: (*wire.Machine)(w.Machine), GPUs: gpusOf(w.GPUs), GPUsLeased: w.LeasedGPUs(), Pool: stockOf(w.Pool),
			Runtimes: emptyIfNil(w.Runtimes), Hibernates: emptyIfNil(w.Hibernates),
		}
		if d, drained := drains[w.Node]; drained {
			list.Items[i].Drain = &d
		}
	}
	return list, nil
}

func stockOf(pool []farm.PoolStock) []wire.PoolStock {
	out := make([]wire.PoolStock, len(pool))
	for i, p := range pool {
		out[i] = wire.PoolStock(p)
	}
	return out
}

// Queues lists the queues. A queue that a worker serves for new sandboxes is listed even before its first job.
func (s *Service) Queues(ctx context.Context) (wire.Items[wire.Queue], error) {
	list, err := s.queues(ctx)
	if err != nil {
		return list, err
	}
	rates, err := s.rates(ctx)
	if err != nil {
		return wire.Items[wire.Queue]{}, err
	}
	for i := range list.Items {
		list.Items[i].EndedPerMinute = rates[list.Items[i].Name]
	}
	return list, nil
}

// queues lists the queues without their rates.
func (s *Service) queues(ctx context.Context) (wire.Items[wire.Queue], error) {
	depths, err := s.Deps.Queues.Depths(ctx)
	if err != nil {
		return wire.Items[wire.Queue]{}, fmt.Errorf("read queues: %w", err)
	}
	workers, err := s.Store.Workers(ctx)
	if err != nil {
		return wire.Items[wire.Queue]{}, err
	}
	devices := gpuQueues(workers)
	for _, name := range append(slices.Collect(maps.Keys(devices)), farm.QueueCPU) {
		if !slices.ContainsFunc(depths, func(d farm.QueueDepth) bool { return d.Name == name }) {
			depths = append(depths, farm.QueueDepth{Name: name})
		}
	}
	list := wire.Items[wire.Queue]{Items: make([]wire.Queue, len(depths))}
	for i, d := range depths {
		list.Items[i] = wire.Queue{
			Name: d.Name, Depth: d.Depth, Running: d.Running, OldestSeconds: d.OldestSeconds,
			GPUs: devices[d.Name].all, GPUsLeased: devices[d.Name].leased,
		}
	}
	slices.SortFunc(list.Items, func(a, b wire.Queue) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// Ready checks every part that the farm needs: Redis, the object store and a worker that accepts jobs.
func (s *Service) Ready(ctx context.Context) wire.Ready {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	var redis, storage, workers wire.PartState
	var group sync.WaitGroup
	group.Go(func() { redis = part(s.Store.Ping(ctx)) })
	group.Go(func() { storage = part(s.Blobs.Ping(ctx)) })
	group.Go(func() { workers = part(s.workersReady(ctx)) })
	group.Wait()
	out := wire.Ready{Status: "ready", Parts: map[string]wire.PartState{"redis": redis, "storage": storage, "workers": workers}}
	if !redis.OK || !storage.OK || !workers.OK {
		out.Status = "unready"
	}
	return out
}

func part(err error) wire.PartState {
	switch {
	case err == nil:
		return wire.PartState{OK: true}
	case farm.CodeOf(err) == farm.CodeInternal:
		return wire.PartState{Detail: "it does not answer"}
	default:
		return wire.PartState{Detail: farm.MessageOf(err)}
	}
}

// down is nil unless every live worker reports a problem.
func (s *Service) down(ctx context.Context) error {
	workers, err := s.Store.Workers(ctx)
	if err != nil {
		return err
	}
	problem := ""
	for _, w := range workers {
		if w.Problem == "" {
			return nil
		}
		problem = w.Problem
	}
	if problem == "" {
		return nil
	}
	return farm.Errorf(farm.CodeUnavailable, "No worker accepts jobs: %s", problem)
}

// workersReady returns an error unless at least one worker accepts jobs.
func (s *Service) workersReady(ctx context.Context) error {
	workers, err := s.Store.Workers(ctx)
	if err != nil {
		return err
	}
	problem := "No worker is up."
	for _, w := range workers {
		if w.Problem == "" {
			return nil
		}
		problem = "No worker accepts jobs: " + w.Problem
	}
	return farm.Errorf(farm.CodeUnavailable, "%s", problem)
}
