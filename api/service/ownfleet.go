package service

import (
	"context"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// ownMost bounds how many open sandboxes and unfinished jobs of a tenant a view of its own fleet looks at; older ones are left out.
const ownMost = 1000

// OwnWorkers lists the workers of the nodes that have open sandboxes of a tenant. It does not say what other tenants make of them:
// hosts, capacities, and counts are left out, and sandboxes are the tenant's own.
func (s *Service) OwnWorkers(ctx context.Context, tenant string) (wire.Items[wire.Worker], error) {
	list, err := s.Workers(ctx)
	if err != nil {
		return list, err
	}
	nodes, err := s.ownNodes(ctx, tenant)
	if err != nil {
		return list, err
	}
	own := map[string]int{}
	for _, node := range nodes {
		own[node]++
	}
	list.Items = slices.DeleteFunc(list.Items, func(w wire.Worker) bool { return own[w.Node] == 0 })
	for i := range list.Items {
		w := &list.Items[i]
		w.Host, w.Slots, w.Running, w.Sandboxes, w.Pool = "", 0, 0, own[w.Node], []wire.PoolStock{}
		w.Capacity, w.Promised, w.Drain = wire.Room{}, wire.Room{}, nil
	}
	return list, nil
}

// OwnQueues lists the queues with what a tenant itself has in them, without the queues of nodes where it has nothing.
func (s *Service) OwnQueues(ctx context.Context, tenant string) (wire.Items[wire.Queue], error) {
	list, err := s.queues(ctx)
	if err != nil {
		return list, err
	}
	nodes, err := s.ownNodes(ctx, tenant)
	if err != nil {
		return list, err
	}
	filter := store.JobFilter{States: []farm.JobState{farm.JobQueued, farm.JobRunning}}
	jobs, err := upTo(ownMost, func(p store.Page) ([]*farm.Job, string, error) { return s.Store.Jobs(ctx, tenant, filter, p) })
	if err != nil {
		return list, err
	}
	own := map[string]wire.Queue{}
	for _, node := range nodes {
		own[farm.NodeQueue(node)] = wire.Queue{}
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
		q.Depth, q.Running, q.OldestSeconds = has.Depth, has.Running, has.OldestSeconds
	}
	return list, nil
}

// ownNodes are the nodes of a tenant's open sandboxes, by sandbox.
func (s *Service) ownNodes(ctx context.Context, tenant string) (map[string]string, error) {
	filter := store.SandboxFilter{}
	for _, state := range farm.SandboxStates() {
		if !state.Final() {
			filter.States = append(filter.States, state)
		}
	}
	boxes, err := upTo(ownMost, func(p store.Page) ([]*farm.Sandbox, string, error) { return s.Store.Sandboxes(ctx, tenant, filter, p) })
	nodes := make(map[string]string, len(boxes))
	for _, box := range boxes {
		if box.Node != "" {
			nodes[box.ID] = box.Node
		}
	}
	return nodes, err
}

// upTo reads pages until there are enough items, or the end.
func upTo[T any](most int, read func(store.Page) ([]T, string, error)) ([]T, error) {
	var all []T
	for page := (store.Page{Limit: 200}); ; {
		items, next, err := read(page)
		if err != nil {
			return nil, err
		}
		if all = append(all, items...); next == "" || len(all) >= most {
			return all, nil
		}
		page.Cursor = next
	}
}
