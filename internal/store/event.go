package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// eventStretch bounds one script call.
const eventStretch = 1000

// AppendEvents appends to a job's events and wakes its watchers. An event whose id "<seq>-<n>" is not newer than the last one is skipped, so a
// takeover may replay; an empty id means the one after the last. A final job gets no more events: its state is the last one.
func (s *Store) AppendEvents(ctx context.Context, ref farm.Ref, events []farm.Event) error {
	for len(events) > 0 {
		part := events[:min(eventStretch, len(events))]
		events = events[len(part):]
		args := make([]any, 0, 1+2*len(part))
		args = append(args, ref.ID)
		for _, event := range part {
			if event.ID != "" && !eventID(event.ID, true) {
				return fmt.Errorf("append event: id %q is not <seq>-<n>", event.ID)
			}
			data, err := encode("event", event)
			if err != nil {
				return err
			}
			args = append(args, event.ID, data)
		}
		r, err := s.run(ctx, "append events", s.scripts.eventAppend, ref.Tenant, args...)
		if err != nil {
			return err
		}
		if r.text(0) == "notfound" {
			return noJob(ref.ID)
		}
	}
	return nil
}

// Events reads up to limit (0: 1000) of a job's events, those after an id; "" means from the start.
func (s *Store) Events(ctx context.Context, ref farm.Ref, after string, limit int) ([]farm.Event, error) {
	start := "-"
	if after != "" {
		if !eventID(after, false) {
			return nil, farm.Invalidf("%q is not the id of an event. Use the id of an event of this job, or none to start from the first.", clip(after))
		}
		start = "(" + after
	}
	if limit <= 0 {
		limit = eventStretch
	}
	entries, err := s.rdb.XRangeN(ctx, s.key(ref.Tenant, "ev", ref.ID), start, "+", int64(limit)).Result()
	if err != nil {
		return nil, wrap("read events", err)
	}
	events := make([]farm.Event, len(entries))
	for i, entry := range entries {
		text, _ := entry.Values["e"].(string)
		if err := json.Unmarshal([]byte(text), &events[i]); err != nil {
			return nil, fmt.Errorf("decode event %s of job %s: %w", entry.ID, ref.ID, err)
		}
		events[i].ID = entry.ID
	}
	return events, nil
}

// LastEvent reads the id of a job's last event; "" if there is no such job.
func (s *Store) LastEvent(ctx context.Context, ref farm.Ref) (string, error) {
	id, err := s.rdb.HGet(ctx, s.key(ref.Tenant, "job", ref.ID), "ev").Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return id, wrap("read last event", err)
}

// eventID reports whether s is "<seq>-<n>" or, unless whole, just "<seq>". The numbers are below 2^53, so that Lua holds them exactly.
func eventID(s string, whole bool) bool {
	seq, n, both := strings.Cut(s, "-")
	if whole && !both {
		return false
	}
	return counter(seq) && (!both || counter(n))
}

func counter(s string) bool {
	n, err := strconv.ParseUint(s, 10, 64)
	return err == nil && n < 1<<53 && s[0] != '+'
}

// clip shortens what a caller sent, for an error sentence.
func clip(s string) string { return clipText(s, 64) }

// clipText cuts a text to some bytes.
func clipText(s string, limit int) string {
	if len(s) > limit {
		return strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return s
}
