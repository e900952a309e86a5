package service

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// readyTimeout bounds the check of each part: a readiness check must not hang.
const readyTimeout = 3 * time.Second

// readyFor is how long the answer of a check is given again: anybody may ask.
const readyFor = time.Second

// readiness is the answer of the last check.
type readiness struct {
	mu    sync.Mutex // held while the parts are checked: all who ask meanwhile get the same answer
	state wire.Ready
	at    time.Time
}

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
	nodes := make([]string, len(workers))
	for i, w := range workers {
		nodes[i] = w.Node
	}
	slices.Sort(nodes)
	open, err := s.Store.CountOpenOn(ctx, slices.Compact(nodes)...)
	if err != nil {
		return wire.Items[wire.Worker]{}, err
	}
	list := wire.Items[wire.Worker]{Items: make([]wire.Worker, len(workers))}
	for i, w := range workers {
		shown := workerOf(&w)
		shown.Host, shown.Slots, shown.Running, shown.Sandboxes = w.Host, w.Slots, w.Running, open[w.Node]
		shown.Capacity, shown.Promised, shown.Machine = wire.Room(w.Capacity), wire.Room(w.Reserved), (*wire.Machine)(w.Machine)
		shown.GPUs, shown.GPUsLeased, shown.Pool = gpusOf(w.GPUs), w.LeasedGPUs(), stockOf(w.Pool)
		if d, drained := drains[w.Node]; drained {
			shown.Drain = &d
		}
		list.Items[i] = shown
	}
	return list, nil
}

// workerOf is what every tenant may know of a worker that has sandboxes of its own.
func workerOf(w *farm.Worker) wire.Worker {
	images := make([]string, len(w.Images))
	for i, image := range w.Images {
		images[i] = image.Name
	}
	return wire.Worker{
		ID: w.ID, Node: w.Node, Version: w.Version, Queues: emptyIfNil(w.Queues), Images: images, Runtimes: emptyIfNil(w.Runtimes), Hibernates: emptyIfNil(w.Hibernates),
		StartedAt: w.StartedAt.UTC(), SeenAt: w.SeenAt.UTC(), Problem: w.Problem, Pool: []wire.PoolStock{}, GPUs: []wire.GPUDevice{},
	}
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

// Ready checks every part that the farm needs: Redis, the object store and a worker that accepts jobs. It checks them once in readyFor.
func (s *Service) Ready(ctx context.Context) wire.Ready {
	s.ready.mu.Lock()
	defer s.ready.mu.Unlock()
	if age := s.Now().Sub(s.ready.at); age < 0 || age >= readyFor {
		s.ready.state = s.check(context.WithoutCancel(ctx)) // others get its answer
		s.ready.at = s.Now()
	}
	return s.ready.state
}

func (s *Service) check(ctx context.Context) wire.Ready {
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

// workersReady returns an error unless at least one worker accepts jobs. Anybody may read it, so it does not say what the workers' problems are.
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
		problem = "No worker accepts jobs. GET /v1/workers tells an admin why, and so do the logs of the workers."
	}
	return farm.Errorf(farm.CodeUnavailable, "%s", problem)
}

// maxOwn bounds how many unfinished jobs and callbacks of a tenant a view of its own fleet looks at; older ones are left out.
const maxOwn = 1000

// OwnWorkers lists the workers of the nodes that have open sandboxes of a tenant, with what the tenant may ask of them and whether they work. What says
// something of the operator's machines or of other tenants is left out: hosts, capacities, devices and counts; sandboxes are the tenant's own.
func (s *Service) OwnWorkers(ctx context.Context, tenant string) (wire.Items[wire.Worker], error) {
	list := wire.Items[wire.Worker]{Items: []wire.Worker{}}
	workers, err := s.Store.Workers(ctx)
	if err != nil {
		return list, err
	}
	nodes, err := s.Store.NodesOf(ctx, tenant)
	if err != nil {
		return list, err
	}
	own := map[string]int{}
	for _, node := range nodes {
		own[node]++
	}
	for _, w := range workers {
		if own[w.Node] > 0 {
			shown := workerOf(&w)
			shown.Sandboxes = own[w.Node]
			list.Items = append(list.Items, shown)
		}
	}
	return list, nil
}

// OwnQueues lists the queues with what a tenant itself has in them, without the queues of nodes where it has nothing, and without devices.
func (s *Service) OwnQueues(ctx context.Context, tenant string) (wire.Items[wire.Queue], error) {
	list, err := s.queues(ctx)
	if err != nil {
		return list, err
	}
	nodes, err := s.Store.NodesOf(ctx, tenant)
	if err != nil {
		return list, err
	}
	callbacks, err := s.Store.Callbacks(ctx, tenant, maxOwn)
	if err != nil {
		return list, err
	}
	own := map[string]wire.Queue{farm.QueueCallbacks: {Depth: len(callbacks)}} // those that are not delivered
	for _, node := range nodes {
		own[farm.NodeQueue(node)] = wire.Queue{}
	}
	jobs, err := s.Store.QueuedAndRunning(ctx, tenant, maxOwn)
	if err != nil {
		return list, err
	}
	for _, job := range jobs {
		queue := job.Queue
		if queue == "" {
			queue = farm.QueueCPU
			if node := nodes[job.SandboxID]; node != "" {
				queue = farm.NodeQueue(node)
			}
		}
		q := own[queue]
		if job.State == farm.JobQueued {
			q.Depth++
			q.OldestSeconds = max(q.OldestSeconds, s.Now().Sub(job.CreatedAt).Seconds())
		} else {
			q.Running++
		}
		own[queue] = q
	}
	list.Items = slices.DeleteFunc(list.Items, func(q wire.Queue) bool {
		_, has := own[q.Name]
		return !has && strings.HasPrefix(q.Name, farm.NodeQueue(""))
	})
	for i := range list.Items {
		q, has := &list.Items[i], own[list.Items[i].Name]
		*q = wire.Queue{Name: q.Name, Depth: has.Depth, Running: has.Running, OldestSeconds: has.OldestSeconds}
	}
	return list, nil
}

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
