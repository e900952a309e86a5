package server

import (
	"sort"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// keptExecutions is how many ended executions are kept until they are forgotten.
	keptExecutions = 256
	// keptBytes bounds the total size of the frames of ended executions.
	keptBytes = 64 << 20
)

// registry holds executions by id. It starts each id once.
type registry struct {
	mu   sync.Mutex
	byID map[string]*execution.Execution
	wg   sync.WaitGroup
	shut bool
}

func newRegistry() *registry { return &registry{byID: map[string]*execution.Execution{}} }

// start adds an execution and runs it, unless its id is known.
func (r *registry) start(e *execution.Execution, run func(*execution.Execution)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shut {
		return farm.Errorf(farm.CodeUnavailable, "The agent is shutting down.")
	}
	if r.byID[e.ID] != nil {
		return nil
	}
	r.byID[e.ID] = e
	r.wg.Go(func() {
		run(e)
		r.trim()
	})
	return nil
}

func (r *registry) get(id string) (*execution.Execution, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.byID[id]; e != nil {
		return e, nil
	}
	return nil, farm.NotFoundf("The sandbox does not hold execution %q.", execution.Cut(id, 64))
}

// forget drops an execution; a running one is killed.
func (r *registry) forget(id string) {
	r.mu.Lock()
	e := r.byID[id]
	delete(r.byID, id)
	r.mu.Unlock()
	if e != nil {
		e.Kill()
		e.Log.Unblock()
	}
}

// sorted returns all executions, the oldest first.
func (r *registry) sorted() []*execution.Execution {
	r.mu.Lock()
	list := make([]*execution.Execution, 0, len(r.byID))
	for _, e := range r.byID {
		list = append(list, e)
	}
	r.mu.Unlock()
	sort.Slice(list, func(i, j int) bool {
		if !list[i].Created.Equal(list[j].Created) {
			return list[i].Created.Before(list[j].Created)
		}
		return list[i].ID < list[j].ID
	})
	return list
}

func (r *registry) list() []agent.Execution {
	out := []agent.Execution{}
	for _, e := range r.sorted() {
		first, last, _, ended := e.Log.State()
		out = append(out, agent.Execution{ID: e.ID, Done: ended, Started: e.Created.UTC().Truncate(time.Microsecond), LastSeq: last, FirstSeq: first})
	}
	return out
}

// trim drops the oldest ended executions when they exceed keptExecutions or keptBytes. It always keeps the newest one.
func (r *registry) trim() {
	list := r.sorted()
	count, size := 0, 0
	for i := len(list) - 1; i >= 0; i-- {
		_, _, bytes, ended := list[i].Log.State()
		if !ended {
			continue
		}
		count++
		size += bytes
		if count > 1 && (count > keptExecutions || size > keptBytes) {
			r.mu.Lock()
			delete(r.byID, list[i].ID)
			r.mu.Unlock()
		}
	}
}

// close kills all executions and waits for them.
func (r *registry) close() {
	r.mu.Lock()
	r.shut = true
	r.mu.Unlock()
	for _, e := range r.sorted() {
		e.Kill()
		e.Log.Unblock()
	}
	r.wg.Wait()
}
