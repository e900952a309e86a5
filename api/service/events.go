package service

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// eventBatch is how many events are read at once.
const eventBatch = 256

// Events is one reader of a job's events: past events first, then live ones, until the final state.
type Events struct {
	s       *Service
	ref     farm.Ref
	after   string
	watch   *store.Watch
	pending []farm.Event
	over    bool
}

// Events reads a job's events after the event with the id after; "" reads from the start. A malformed id is an error
// with CodeInvalid.
func (s *Service) Events(ctx context.Context, tenant, jobID, after string) (*Events, error) {
	if !farm.ValidID(farm.JobPrefix, jobID) {
		return nil, noJob(jobID)
	}
	e := &Events{s: s, ref: farm.Ref{Tenant: tenant, ID: jobID}, after: after}
	if _, err := s.Store.Job(ctx, e.ref); err != nil {
		return nil, err
	}
	watch, err := s.Store.Watch(ctx, jobID)
	if err != nil {
		return nil, err
	}
	e.watch = watch
	if err := e.read(ctx); err != nil {
		watch.Close()
		return nil, err
	}
	return e, nil
}

// Close ends the subscription.
func (e *Events) Close() { e.watch.Close() }

// Next returns the next events, or none if nothing happened within timeout: call it again then. io.EOF: the final state was
// returned, the record is deleted, or the server stops.
func (e *Events) Next(ctx context.Context, timeout time.Duration) ([]wire.Event, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		if len(e.pending) > 0 {
			return e.take(ctx)
		}
		if e.over {
			return nil, io.EOF
		}
		select {
		case <-e.watch.C():
		case <-timer.C:
			return nil, nil
		case <-e.s.draining:
			return nil, io.EOF
		case <-ctx.Done():
			return nil, io.EOF
		}
		if err := e.read(ctx); err != nil {
			return nil, err
		}
	}
}

// take returns the pending events and reads more if there may be more.
func (e *Events) take(ctx context.Context) ([]wire.Event, error) {
	out := make([]wire.Event, 0, len(e.pending))
	for i := range e.pending {
		event, err := e.s.event(ctx, &e.pending[i])
		if err != nil {
			return nil, err
		}
		out = append(out, event)
	}
	full := len(e.pending) == eventBatch
	e.pending = nil
	if full && !e.over {
		return out, e.read(ctx)
	}
	return out, nil
}

// read reads the events after the last one. If a final job has no new events, this is the end. The event of the final state
// is written in the same step as the state, so the events are read once more after the state.
func (e *Events) read(ctx context.Context) error {
	for _, again := range []bool{true, false} {
		events, err := e.s.Store.Events(ctx, e.ref, e.after, eventBatch)
		if err != nil {
			return err
		}
		if len(events) > 0 {
			last := events[len(events)-1]
			e.pending, e.after = events, last.ID
			e.over = last.Name == farm.EventState && last.State.Final()
			return nil
		}
		job, err := e.s.Store.Job(ctx, e.ref)
		switch {
		case farm.CodeOf(err) == farm.CodeNotFound:
			e.over = true
			return nil
		case err != nil:
			return err
		case !job.State.Final():
			return nil
		case !again:
			e.over = true
		}
	}
	return nil
}

// event converts an event and makes its links.
func (s *Service) event(ctx context.Context, e *farm.Event) (wire.Event, error) {
	var data any
	switch {
	case e.Name == farm.EventStdout || e.Name == farm.EventStderr:
		data = wire.TextData{Text: e.Text}
	case e.Name == farm.EventDisplay && e.Display != nil:
		data = wire.DisplayData(s.rich(ctx, *e.Display))
	case e.Name == farm.EventProgress && e.Progress != nil:
		data = wire.ProgressData(*e.Progress)
	case e.Name == farm.EventArtifact && e.Artifact != nil:
		data = s.artifact(ctx, e.Artifact)
	case e.Name == farm.EventState:
		data = wire.StateData{State: string(e.State)}
	default:
		data = struct{}{}
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(data); err != nil {
		return wire.Event{}, fmt.Errorf("encode event: %w", err)
	}
	return wire.Event{ID: e.ID, Name: string(e.Name), Data: bytes.TrimRight(text.Bytes(), "\n")}, nil
}
