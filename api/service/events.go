package service

import (
	"context"
	"io"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Events is one reader of a job's events: past events first, then live ones, until the final state.
type Events struct {
	s       *Service
	ref     farm.Ref
	after   string
	watch   *store.Watch
	pending []farm.Event
	more    bool // events that can be read without waiting
	over    bool
}

// Events reads a job's events after the event with the id after; "" reads from the start. A malformed id is an error
// with CodeInvalid.
func (s *Service) Events(ctx context.Context, tenant, jobID, after string) (*Events, error) {
	if !farm.ValidID(farm.JobPrefix, jobID) {
		return nil, noJob(jobID)
	}
	e := &Events{s: s, ref: farm.Ref{Tenant: tenant, ID: jobID}, after: after}
	watch, err := s.Store.Watch(ctx, jobID)
	if err != nil {
		return nil, err
	}
	e.watch = watch
	known, err := e.read(ctx)
	if err == nil && !known {
		err = noJob(jobID)
	}
	if err != nil {
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
	records, err := e.NextRecords(ctx, timeout)
	if err != nil {
		return nil, err
	}
	return e.s.events(ctx, records)
}

// NextRecords is Next for callers who need the events as the farm has them.
func (e *Events) NextRecords(ctx context.Context, timeout time.Duration) ([]farm.Event, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		if len(e.pending) > 0 { // the next ones are read when they are asked for, so that a reader holds one batch
			records := e.pending
			e.pending = nil
			return records, nil
		}
		if e.over {
			return nil, io.EOF
		}
		if !e.more {
			select {
			case <-e.watch.C():
			case <-timer.C:
				return nil, nil
			case <-e.s.draining:
				return nil, io.EOF
			case <-ctx.Done():
				return nil, io.EOF
			}
		}
		if _, err := e.read(ctx); err != nil {
			return nil, err
		}
	}
}

// events converts events.
func (s *Service) events(ctx context.Context, records []farm.Event) ([]wire.Event, error) {
	out := make([]wire.Event, 0, len(records))
	for i := range records {
		event, err := s.event(ctx, &records[i])
		if err != nil {
			return nil, err
		}
		out = append(out, event)
	}
	return out, nil
}

// read reads the events after the last one, and reports whether there is such a job. If a final job has no new events, this is the end. The
// event of the final state is written in the same step as the state, and the state is read after the events, so they are read once more.
func (e *Events) read(ctx context.Context) (known bool, err error) {
	for _, again := range []bool{true, false} {
		batch, err := e.s.Store.Events(ctx, e.ref, e.after)
		if err != nil {
			return false, err
		}
		e.more = batch.More
		switch {
		case batch.State == "":
			e.over = true
			return false, nil
		case len(batch.Events) > 0:
			last := batch.Events[len(batch.Events)-1]
			e.pending, e.after = batch.Events, last.ID
			e.over = last.Name == farm.EventState && last.State.Final()
			return true, nil
		case !batch.State.Final():
			return true, nil
		case !again:
			e.over = true
		}
	}
	return true, nil
}

// event converts an event and makes its links.
func (s *Service) event(ctx context.Context, e *farm.Event) (wire.Event, error) {
	var data any
	switch {
	case e.Name == farm.EventStdout || e.Name == farm.EventStderr:
		data = wire.TextData{Text: e.Text}
	case e.Name == farm.EventDisplay && e.Display != nil:
		r := s.rich(ctx, *e.Display)
		data = wire.DisplayData{
			Display: r.Display, Mime: r.Mime, Data: r.Data, ArtifactID: r.ArtifactID, URL: r.URL,
			DisplayID: r.DisplayID, Metadata: r.Metadata, Result: r.Result, More: e.Display.More, Update: e.Display.Update,
		}
	case e.Name == farm.EventClear:
		data = wire.ClearData{Wait: e.Wait}
	case e.Name == farm.EventProgress && e.Progress != nil:
		data = wire.ProgressData(*e.Progress)
	case e.Name == farm.EventArtifact && e.Artifact != nil:
		data = s.artifact(ctx, e.Artifact)
	case e.Name == farm.EventState:
		data = wire.StateData{State: string(e.State)}
	default:
		data = struct{}{}
	}
	text, err := farm.Encode(data)
	return wire.Event{ID: e.ID, Name: string(e.Name), Data: text}, err
}
