package jobs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
	"github.com/sandfarm/sandfarm/internal/store/tenants"
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

// line is the event in a segment.
func (e encodedEvent) line() string {
	return `{"id":"` + e.id + `",` + strings.TrimPrefix(e.data, "{") + "\n"
}

// lineBytes is the length of the line.
func (e encodedEvent) lineBytes() int { return len(`{"id":"",`) + len(e.id) + len(e.data) }

// AppendEvents appends to a job's events and wakes its watchers. An event whose id "<seq>-<n>" is not newer than the last one is skipped, so a
// takeover may replay; an empty id means the one after the last. A final job gets no more events: its state is the last one. The job must
// run under this attempt, otherwise ErrFenced; 0 means any.
//
// Redis keeps a window of the newest events. Events that do not fit into it, and those that are in it, are written to the object store first.
// CodeExhausted: the storage of the tenant has no room for them, and some of those that were not stored yet are not. A few short progress events
// find room all the same. Many events are encoded and stored by the segment, the types of one state of a displayed value together: a takeover replays
// all events of a frame or none.
func (s *Store) AppendEvents(ctx context.Context, ref farm.Ref, attempt int, events []farm.Event) error {
	for _, event := range events {
		if event.ID != "" && !db.EventID(event.ID, true) {
			return fmt.Errorf("append event: id %q is not <seq>-<n>", event.ID)
		}
	}
	var encoded []encodedEvent
	lines, notices, more := 0, true, false
	for _, event := range events {
		data, err := db.Encode("event", event)
		if err != nil {
			return err
		}
		e := encodedEvent{event.ID, string(data)}
		line := e.lineBytes()
		if lines+line > segmentBytes && lines > 0 && !more {
			if err := s.appendEncoded(ctx, ref, attempt, encoded, notices); err != nil {
				return err
			}
			encoded, lines, notices = nil, 0, true
		}
		encoded = append(encoded, e)
		lines += line
		notices = notices && event.Name == farm.EventProgress
		more = event.Display != nil && event.Display.More
	}
	return s.appendEncoded(ctx, ref, attempt, encoded, notices)
}

// appendEncoded appends encoded events; notices: all are progress events.
func (s *Store) appendEncoded(ctx context.Context, ref farm.Ref, attempt int, encoded []encodedEvent, notices bool) error {
	size := 0
	for _, e := range encoded {
		size += len(e.data)
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

// segmentBytes is how much of a job's events one segment has at most; one event may be longer. It is also the most that one read returns.
const segmentBytes = 256 << 10

// archiveTries is how often the window is read again since another process has appended to it. That happens a few times in the life of a
// job: its state changes, or another worker takes it over.
const archiveTries = 5

// errWindowMoves says that the window changed at each try.
var errWindowMoves = farm.Errorf(farm.CodeUnavailable, "the events of the job change too often to be stored")

// archiveArgs are the arguments of event_archive.lua.
type archiveArgs struct {
	ID       string   `lua:"id"`
	Attempt  int      `lua:"attempt"`
	Expected string   `lua:"expected"`
	Last     string   `lua:"last"` // id of the last event in the segments
	Segments []string `lua:"segments"`
	Bytes    int      `lua:"bytes"` // of the segments
}

// archiveEvents writes the window and these events to the object store, as segments, and empties the window. Readers see all of them or none.
func (s *Store) archiveEvents(ctx context.Context, ref farm.Ref, attempt int, events []encodedEvent) error {
	for range archiveTries {
		w, err := s.readWindow(ctx, ref)
		switch {
		case err != nil:
			return err
		case w.state == "":
			return noJob(ref.ID)
		case w.state.Final():
			return nil
		case attempt != 0 && attempt != w.attempt:
			return fmt.Errorf("append events of job %s: %w", ref.ID, db.ErrFenced)
		}
		a := archive{last: w.last}
		for _, e := range w.events {
			a.add(e)
		}
		for _, e := range events {
			if e.id = nextEvent(a.last, e.id); e.id != "" {
				a.add(e)
			}
		}
		if a.last == w.last {
			return nil // a retry of a call whose answer was lost
		}
		moved, err := s.storeArchive(ctx, ref, attempt, w.last, &a)
		if !moved {
			return err
		}
	}
	return fmt.Errorf("append events of job %s: %w", ref.ID, errWindowMoves)
}

// storeArchive writes the segments and makes them part of the job, which charges them: segments that are refused are removed at once. moved says
// that the window has changed since it was read.
func (s *Store) storeArchive(ctx context.Context, ref farm.Ref, attempt int, expected string, a *archive) (moved bool, err error) {
	names, keys := make([]string, len(a.segments)), make([]string, len(a.segments))
	size := 0
	for i, segment := range a.segments {
		size += segment.lines.Len()
		// A worker that was fenced may write the same events at the same time, so each object has a name of its own.
		names[i] = segment.first + "." + rand.Text()[:5]
		keys[i] = segmentKey(ref, names[i])
		if err := s.Documents.PutDocument(ctx, keys[i], segment.lines.Bytes()); err != nil {
			s.DropDocuments(ctx, keys[:i]...)
			return false, fmt.Errorf("store events: %w", err)
		}
	}
	r, err := s.Run(ctx, "archive events", "event_archive", ref.Tenant, archiveArgs{
		ID: ref.ID, Attempt: attempt, Expected: expected, Last: a.last, Segments: names, Bytes: size,
	})
	if err != nil {
		return false, err // the segments may be part of the job
	}
	if r.Text(0) == "ok" {
		return false, nil
	}
	s.DropDocuments(ctx, keys...)
	switch r.Text(0) {
	case "moved":
		return true, nil
	case "final":
		return false, nil
	case "full":
		return false, tenants.StorageFull(r)
	default:
		return false, fenced("append events", ref, r)
	}
}

func segmentKey(ref farm.Ref, name string) string { return db.DocumentKey(ref, "events/"+name) }

// eventWindow is what Redis has of a job's events, read in one step.
type eventWindow struct {
	state   farm.JobState // "": there is no such job
	attempt int
	last    string // id of the last event
	events  []encodedEvent
}

func (s *Store) readWindow(ctx context.Context, ref farm.Ref) (eventWindow, error) {
	pipe := s.Redis.TxPipeline()
	entries := pipe.XRange(ctx, s.Key(ref.Tenant, db.KeyEvents, ref.ID), "-", "+")
	job := pipe.HMGet(ctx, s.Key(ref.Tenant, db.KeyJob, ref.ID), "state", "attempt", "ev")
	if _, err := pipe.Exec(ctx); err != nil {
		return eventWindow{}, db.Wrap("read window of events", err)
	}
	record := db.Reply(job.Val())
	w := eventWindow{state: farm.JobState(record.Text(0)), attempt: record.Number(1), last: record.Text(2)}
	if w.last == "" {
		w.last = "0-0"
	}
	for _, entry := range entries.Val() {
		text, _ := entry.Values["e"].(string)
		w.events = append(w.events, encodedEvent{entry.ID, text})
	}
	return w, nil
}

// archive gathers events in segments.
type archive struct {
	segments []*segment
	last     string // id of the last event
}

// segment is one object: a line of JSON for each event.
type segment struct {
	first string // id of the first event
	lines bytes.Buffer
}

func (a *archive) add(e encodedEvent) {
	line := e.line()
	if n := len(a.segments); n == 0 || a.segments[n-1].lines.Len()+len(line) > segmentBytes {
		a.segments = append(a.segments, &segment{first: e.id})
	}
	a.segments[len(a.segments)-1].lines.WriteString(line)
	a.last = e.id
}

// nextEvent is nextEventID of the scripts, for ids that callers give: the id of an event behind the last one; "" if it is not newer.
func nextEvent(last, id string) string {
	if id == "" {
		seq, n := splitEvent(last)
		return strconv.FormatUint(seq, 10) + "-" + strconv.FormatUint(n+1, 10)
	}
	if !newerEvent(id, last) {
		return ""
	}
	return id
}

// archivedEvents reads the events after an id from the first segment that has some; none if the segments are lost.
func (s *Store) archivedEvents(ctx context.Context, ref farm.Ref, after string) ([]farm.Event, error) {
	names, err := s.Redis.LRange(ctx, s.Key(ref.Tenant, db.KeySegments, ref.ID), 0, -1).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, db.Wrap("list segments of events", err)
	}
	// The first segment that begins behind the id, and the one before it, which may end behind it.
	from := sort.Search(len(names), func(i int) bool {
		first, _, _ := strings.Cut(names[i], ".")
		return newerEvent(first, after)
	})
	for _, name := range names[max(from-1, 0):] {
		if s.Documents == nil {
			return nil, db.ErrNoDocuments
		}
		data, err := s.Documents.GetDocument(ctx, segmentKey(ref, name))
		if farm.CodeOf(err) == farm.CodeNotFound {
			s.Log.WarnContext(ctx, "events of a job are gone", "job_id", ref.ID, "segment", name)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read events: %w", err)
		}
		events, err := decodeSegment(ctx, data, after)
		if err != nil {
			return nil, fmt.Errorf("decode events %s of job %s: %w", name, ref.ID, err)
		}
		if len(events) > 0 {
			return events, nil
		}
	}
	return nil, nil
}

// decodeSegment reads the events after an id from a segment, a large one on a core of the tenant of ctx (budget.Core).
func decodeSegment(ctx context.Context, data []byte, after string) ([]farm.Event, error) {
	leave, err := budget.Core(ctx, len(data))
	if err != nil {
		return nil, err
	}
	defer leave()
	var events []farm.Event
	for line := range bytes.Lines(data) {
		var e struct {
			ID string `json:"id"`
			farm.Event
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, err
		}
		if e.Event.ID = e.ID; newerEvent(e.ID, after) {
			events = append(events, e.Event)
		}
	}
	return events, nil
}
