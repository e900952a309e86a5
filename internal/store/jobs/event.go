package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

// windowBytes is how much of a job's events Redis keeps, EVENT_EXTRA for each included. Older events are segments in the object store.
const windowBytes = 32 << 10

// noticeBytes is by how much events that are no output may exceed the window, so that a job can say why its output is missing.
const noticeBytes = 2 << 10

// Bounds of one call.
const (
	appendStretch = 1000 // events that one script appends
	eventStretch  = 128  // events that one read takes from the window
)

// encodedEvent is an event as Redis keeps it.
type encodedEvent struct {
	id   string // empty: the one after the last
	data string // JSON without the id
}

// AppendEvents appends to a job's events and wakes its watchers. An event whose id "<seq>-<n>" is not newer than the last one is skipped, so a
// takeover may replay; an empty id means the one after the last. A final job gets no more events: its state is the last one. The job must
// run under this attempt, otherwise ErrFenced; 0 means any.
//
// Redis keeps a window of the newest events. Events that do not fit into it, and those that are in it, are written to the object store first.
// CodeExhausted: the storage of the tenant has no room for them, and none of those that were not stored yet is. A few short progress events
// find room all the same.
func (s *Store) AppendEvents(ctx context.Context, ref farm.Ref, attempt int, events []farm.Event) error {
	encoded := make([]encodedEvent, len(events))
	size, notices := 0, true
	for i, event := range events {
		if event.ID != "" && !db.EventID(event.ID, true) {
			return fmt.Errorf("append event: id %q is not <seq>-<n>", event.ID)
		}
		data, err := db.Encode("event", event)
		if err != nil {
			return err
		}
		encoded[i] = encodedEvent{event.ID, string(data)}
		size += len(data)
		notices = notices && event.Name == farm.EventProgress
	}
	window := windowBytes
	if notices && size <= noticeBytes/2 {
		window += noticeBytes
	}
	if s.Documents == nil {
		window = math.MaxInt32 // there is no other place
	}
	if size > window {
		return s.archiveEvents(ctx, ref, attempt, encoded)
	}
	for part := range slices.Chunk(encoded, appendStretch) {
		args := make([]any, 0, 3+2*len(part))
		args = append(args, ref.ID, attempt, window)
		for _, event := range part {
			args = append(args, event.id, event.data)
		}
		r, err := s.Run(ctx, "append events", "event_append", ref.Tenant, args...)
		if err != nil {
			return err
		}
		if r.Text(0) == "full" {
			err = s.archiveEvents(ctx, ref, attempt, part)
		} else {
			err = fenced("append events", ref, r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// EventBatch is a part of a job's events.
type EventBatch struct {
	Events []farm.Event
	More   bool          // the next call finds more events without waiting
	State  farm.JobState // of the job, read after the events; "": there is no such job
}

// Events reads a job's events after an id; "" means from the start. A batch has at most some hundred KiB. An id that is not one
// is CodeInvalid, and so is one behind the last event of a job that has ended.
func (s *Store) Events(ctx context.Context, ref farm.Ref, after string) (EventBatch, error) {
	start := "-"
	if after != "" {
		if !db.EventID(after, false) {
			return EventBatch{}, farm.Invalidf("%q is not the id of an event. Use the id of an event of this job, or none to start from the first.", db.Clip(after))
		}
		start = "(" + after
	}
	pipe := s.Redis.Pipeline()
	window := pipe.XRangeN(ctx, s.Key(ref.Tenant, db.KeyEvents, ref.ID), start, "+", eventStretch)
	job := pipe.HMGet(ctx, s.Key(ref.Tenant, db.KeyJob, ref.ID), "state", "arc", "ev") // after the window: what leaves it in between is seen here
	if _, err := pipe.Exec(ctx); err != nil {
		return EventBatch{}, db.Wrap("read events", err)
	}
	record := db.Reply(job.Val())
	batch := EventBatch{State: farm.JobState(record.Text(0))}
	if last := record.Text(2); batch.State.Final() && last != "" && newerEvent(after, last) {
		return EventBatch{}, farm.Invalidf("%q is behind the last event of this job, %s. Use the id of an event of this job, or none to start from the first.", db.Clip(after), last)
	}
	if archived := record.Text(1); newerEvent(archived, after) {
		events, err := s.archivedEvents(ctx, ref, after)
		if err != nil {
			return EventBatch{}, err
		}
		if batch.Events, batch.More = events, true; len(events) > 0 {
			return batch, nil
		}
		return s.Events(ctx, ref, archived) // the segments are lost: continue after them
	}
	entries := window.Val()
	batch.Events, batch.More = make([]farm.Event, len(entries)), len(entries) == eventStretch
	for i, entry := range entries {
		text, _ := entry.Values["e"].(string)
		if err := json.Unmarshal([]byte(text), &batch.Events[i]); err != nil {
			return EventBatch{}, fmt.Errorf("decode event %s of job %s: %w", entry.ID, ref.ID, err)
		}
		batch.Events[i].ID = entry.ID
	}
	return batch, nil
}

// LastEvent reads the id of a job's last event; "" if there is no such job.
func (s *Store) LastEvent(ctx context.Context, ref farm.Ref) (string, error) {
	id, err := s.Redis.HGet(ctx, s.Key(ref.Tenant, db.KeyJob, ref.ID), "ev").Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return id, db.Wrap("read last event", err)
}

// splitEvent reads the numbers of an id; the second one may be missing, and counts as 0.
func splitEvent(id string) (seq, n uint64) {
	first, second, _ := strings.Cut(id, "-")
	seq, _ = strconv.ParseUint(first, 10, 64)
	n, _ = strconv.ParseUint(second, 10, 64)
	return seq, n
}

// newerEvent reports whether id a is behind id b. The empty id is before all others.
func newerEvent(a, b string) bool {
	if a == "" || b == "" {
		return a != ""
	}
	seqA, nA := splitEvent(a)
	seqB, nB := splitEvent(b)
	return seqA > seqB || seqA == seqB && nA > nB
}
