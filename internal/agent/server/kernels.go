package server

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	defaultLanguage = "python"
	defaultContext  = "default"
	allContexts     = "*"
	// maxContexts bounds the contexts of a sandbox.
	maxContexts = 8
	// maxContextBytes bounds the name of a context.
	maxContextBytes = 128
)

// place names one line of executions: a context in a language.
type place struct{ context, language string }

// slot is a place: its line, and its kernel when one is up.
type slot struct {
	place
	line line

	mu     sync.Mutex
	kernel *kernel
	lost   bool // the kernel before this one ended by itself while nothing ran
}

// kernels holds the slots.
type kernels struct {
	mu    sync.Mutex
	slots map[place]*slot
}

// normalize fills in the defaults and checks the names.
func (s *Server) normalize(contextName, language string) (place, error) {
	p := place{contextName, strings.ToLower(language)}
	if p.context == "" {
		p.context = defaultContext
	}
	switch p.language {
	case "":
		p.language = defaultLanguage
	case "sh", "shell":
		p.language = "bash"
	}
	if len(p.context) > maxContextBytes || p.context == allContexts {
		return p, farm.Invalidf("context is not a valid name: at most %d bytes, and not %q", maxContextBytes, allContexts)
	}
	if langs := s.languages(); !langs.known(p.language) {
		return p, farm.Invalidf("language %q is not available in this sandbox; available: %s", cut(language, 64), strings.Join(langs.names(), ", "))
	}
	return p, nil
}

// slot gives the slot of a place and makes it when there is room.
func (s *Server) slot(p place) (*slot, error) {
	s.kernels.mu.Lock()
	defer s.kernels.mu.Unlock()
	if at := s.kernels.slots[p]; at != nil {
		return at, nil
	}
	if len(s.kernels.slots) >= maxContexts {
		return nil, farm.Errorf(farm.CodeExhausted, "The sandbox has %d contexts already; use one of them, or another sandbox.", maxContexts)
	}
	at := &slot{place: p}
	s.kernels.slots[p] = at
	return at, nil
}

// slotsOf lists the slots of a context, or all.
func (s *Server) slotsOf(contextName string) []*slot {
	s.kernels.mu.Lock()
	defer s.kernels.mu.Unlock()
	var list []*slot
	for p, at := range s.kernels.slots {
		if contextName == allContexts || contextName == p.context {
			list = append(list, at)
		}
	}
	sort.Slice(list, func(i, j int) bool {
		return list[i].context+"\x00"+list[i].language < list[j].context+"\x00"+list[j].language
	})
	return list
}

// up gives the kernel of a slot and starts one when there is none that lives. fresh says that an earlier one ended by itself.
func (s *Server) up(at *slot) (k *kernel, lost bool) {
	spec, ok := s.languages().kernels[at.language]
	if !ok {
		return nil, false
	}
	at.mu.Lock()
	defer at.mu.Unlock()
	if at.kernel != nil && at.kernel.dead() {
		at.lost = at.kernel.err == nil && !at.kernel.wasMeant()
		at.kernel = nil
	}
	if at.kernel == nil {
		at.kernel = s.startKernel(spec)
	}
	lost, at.lost = at.lost, false
	return at.kernel, lost
}

func (k *kernel) wasMeant() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.meant
}

// awaitKernel waits until a kernel can be used.
func awaitKernel(ctx context.Context, k *kernel) error {
	select {
	case <-k.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	if k.err != nil {
		return farm.Wrap(k.err, farm.CodeUnavailable, "The kernel could not be started: %s.", cut(k.err.Error(), 4<<10))
	}
	return nil
}

// startKernels starts the kernel of a context ahead of need.
func (s *Server) startContext(ctx context.Context, contextName, language string) error {
	p, err := s.normalize(contextName, language)
	if err != nil {
		return err
	}
	at, err := s.slot(p)
	if err != nil {
		return err
	}
	k, _ := s.up(at) //nolint:contextcheck // a kernel outlives the request that starts it
	if k == nil {
		return nil // a fresh process each time: nothing to start
	}
	return awaitKernel(ctx, k)
}

// restartContext kills the kernels of a context and waits for new ones.
func (s *Server) restartContext(ctx context.Context, contextName string) error {
	list := s.slotsOf(contextName)
	if len(list) == 0 && contextName != allContexts {
		return farm.NotFoundf("The sandbox has no context %q.", cut(contextName, 64))
	}
	var errs []error
	for _, at := range list {
		at.mu.Lock()
		k := at.kernel
		at.mu.Unlock()
		if k != nil {
			k.stopOnPurpose(s.reaper)
			select {
			case <-k.ready: // only now is it seen as dead
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	for _, at := range list {
		if k, _ := s.up(at); k != nil { //nolint:contextcheck // a kernel outlives the request that starts it
			errs = append(errs, awaitKernel(ctx, k))
		}
	}
	return errors.Join(errs...)
}

// runningKernels describes the kernels that are up.
func (s *Server) runningKernels() []agent.Kernel {
	list := []agent.Kernel{}
	for _, at := range s.slotsOf(allContexts) {
		at.mu.Lock()
		k := at.kernel
		at.mu.Unlock()
		if k == nil || k.dead() {
			continue
		}
		k.mu.Lock()
		if k.proc != nil {
			list = append(list, agent.Kernel{Context: at.context, Language: at.language, PID: k.proc.pid, Busy: k.current != nil})
		}
		k.mu.Unlock()
	}
	return list
}

// closeKernels ends all kernels and waits for them.
func (s *Server) closeKernels() {
	for _, at := range s.slotsOf(allContexts) {
		at.mu.Lock()
		if at.kernel != nil {
			at.kernel.stopOnPurpose(s.reaper)
		}
		at.mu.Unlock()
	}
	s.kernelsUp.Wait()
}

// runCode runs code in its context, when its turn comes.
func (s *Server) runCode(e *execution) {
	p, err := s.normalize(e.spec.Context, e.spec.Language)
	if err != nil {
		e.finish(failed("NotAvailable", farm.MessageOf(err)))
		return
	}
	at, err := s.slot(p)
	if err != nil {
		e.finish(failed("NotAvailable", farm.MessageOf(err)))
		return
	}
	if !at.line.acquire(e.stopped) {
		e.finish(interruptedOutcome())
		return
	}
	defer at.line.release()
	e.begin()
	if interpreter, ok := s.languages().fresh[p.language]; ok {
		e.finish(s.measured(e, func(e *execution) agent.Outcome { return s.runFresh(e, p.language, interpreter) }))
		return
	}
	k, lost := s.up(at)
	select {
	case <-k.ready:
	case <-e.stopped:
		e.finish(interruptedOutcome())
		return
	}
	if k.err != nil {
		e.finish(failed("KernelStartError", fmt.Sprintf("The kernel could not be started: %v", k.err)))
		return
	}
	out := s.measured(e, func(e *execution) agent.Outcome { return s.execute(k, e) })
	if out.Restarted {
		s.up(at) // in the background, for the next one
	}
	out.Restarted = out.Restarted || lost
	e.finish(out)
}
