package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Bounds of the store, as documented.
const (
	window  = 32 << 10
	segment = 256 << 10
)

// runningJob makes a job that runs under attempt 1.
func (b *bundle) runningJob(t *testing.T) farm.Ref {
	t.Helper()
	ref := b.accept(t, Execute(b.box(t, farm.SandboxReady).ID)).Job.Ref()
	b.claim(t, ref, "w")
	return ref
}

// windowBytes is how many bytes of JSON Redis has of a job's events.
func (b *bundle) windowBytes(t *testing.T, ref farm.Ref) int {
	t.Helper()
	entries, err := b.rdb.XRange(t.Context(), b.prefix+"{acme}:ev:"+ref.ID, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for _, entry := range entries {
		text, _ := entry.Values["e"].(string)
		size += len(text)
	}
	return size
}

// eventsLeaveTheWindow appends events of many sizes, some of them twice as a takeover does, and reads them from every position: each reader
// sees each event once, in order, and Redis never has more than the window.
func eventsLeaveTheWindow(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ref := b.runningJob(t)
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same sizes each time
	want := b.events(t, ref, "")
	seq := 1
	for range 60 {
		var batch []farm.Event
		for range 1 + random.IntN(8) {
			size := []int{0, 1, 100, 5000, 40_000, 300_000}[random.IntN(6)]
			seq++
			batch = append(batch, stdout(fmt.Sprintf("%d-%d", seq, random.IntN(3)), strings.Repeat("x", size)))
		}
		for range 1 + random.IntN(2) {
			if err := b.AppendEvents(t.Context(), ref, 1, batch); err != nil {
				t.Fatal(err)
			}
		}
		want = append(want, batch...)
		if n := b.windowBytes(t, ref); n > window {
			t.Fatalf("Redis has %d bytes of events", n)
		}
	}
	b.finish(t, b.job(t, ref), farm.JobCompleted)
	want = append(want, farm.Event{ID: fmt.Sprintf("%d-0", seq+1), Name: farm.EventState, State: farm.JobCompleted})
	for _, from := range []int{0, 1, 2, 3, 50, len(want) / 2, len(want) - 2, len(want) - 1, len(want)} {
		after := ""
		if from > 0 {
			after = want[from-1].ID
		}
		if diff := cmp.Diff(eventIDs(want[from:]), eventIDs(b.events(t, ref, after))); diff != "" {
			t.Errorf("events after %q (-want +got):\n%s", after, diff)
		}
	}
	if diff := cmp.Diff(want, b.events(t, ref, "")); diff != "" {
		t.Error("the events differ in more than their ids")
	}
	for after := ""; ; {
		batch, err := b.Events(t.Context(), ref, after)
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		for _, e := range batch.Events {
			after, size = e.ID, size+len(e.Text)
		}
		if size > segment && len(batch.Events) > 1 {
			t.Errorf("a batch has %d events of %d bytes together", len(batch.Events), size)
		}
		if batch.State != farm.JobCompleted {
			t.Errorf("the job is %q", batch.State)
		}
		if !batch.More {
			break
		}
	}
}

func eventIDs(events []farm.Event) []string {
	out := make([]string, len(events))
	for i, e := range events {
		out[i] = e.ID
	}
	return out
}

// eventsAtTheWindowLimit: events that just fit stay in Redis, one byte more moves all of them.
func eventsAtTheWindowLimit(t *testing.T, factory Factory) {
	frame := len(`{"name":"stdout","text":""}`)
	for _, c := range []struct{ size, documents int }{{window - 32 - 1, 0}, {window - 32, 0}, {window - 32 + 1, 1}, {segment, 2}} {
		b := setup(t, factory)
		ref := b.runningJob(t)
		for _, e := range []farm.Event{stdout("3-0", strings.Repeat("x", c.size-frame)), stdout("", "last")} {
			if err := b.AppendEvents(t.Context(), ref, 0, []farm.Event{e}); err != nil {
				t.Fatal(err)
			}
			if c.documents == 0 {
				b.wantDocuments(t, fmt.Sprintf("after %d bytes", c.size), 0)
				break
			}
		}
		if c.documents > 0 {
			b.wantDocuments(t, fmt.Sprintf("after %d bytes", c.size), c.documents)
			if got := b.events(t, ref, "3-0"); len(got) != 1 || got[0].ID != "3-1" {
				t.Errorf("events behind the segment are %v", got)
			}
		}
	}
}

// eventsAreFenced: a worker whose job was taken over appends nothing and leaves no objects, and the reader sees what its successor wrote.
func eventsAreFenced(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ref := b.runningJob(t)
	small, big := stdout("3-0", "first"), stdout("4-0", large)
	if err := b.AppendEvents(t.Context(), ref, 1, []farm.Event{small}); err != nil {
		t.Fatal(err)
	}
	b.claim(t, ref, "w2") // w has no heartbeat
	for _, late := range []farm.Event{stdout("5-0", "late"), stdout("5-0", large)} {
		if err := b.AppendEvents(t.Context(), ref, 1, []farm.Event{late}); !errors.Is(err, store.ErrFenced) {
			t.Errorf("late AppendEvents of %d bytes = %v, want ErrFenced", len(late.Text), err)
		}
	}
	b.wantDocuments(t, "after late events", 0)
	if err := b.AppendEvents(t.Context(), ref, 2, []farm.Event{big}); err != nil {
		t.Fatal(err)
	}
	b.wantDocuments(t, "after large events", 1)
	b.finish(t, b.job(t, ref), farm.JobCompleted)
	if err := b.AppendEvents(t.Context(), ref, 2, []farm.Event{stdout("99-0", large)}); err != nil {
		t.Errorf("AppendEvents to a final job = %v, want it skipped", err)
	}
	b.wantDocuments(t, "after the end", 1)
	got := b.events(t, ref, "")
	if diff := cmp.Diff([]farm.Event{small, big}, got[2:4]); diff != "" || len(got) != 5 {
		t.Errorf("%d events (-want +got):\n%s", len(got), diff)
	}
}

// eventsWithoutTheirSegments: a reader continues after events whose object is lost, and fails while the object store does not answer.
func eventsWithoutTheirSegments(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ref := b.runningJob(t)
	for seq := 3; seq < 6; seq++ {
		if err := b.AppendEvents(t.Context(), ref, 1, []farm.Event{stdout(fmt.Sprintf("%d-0", seq), large)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.AppendEvents(t.Context(), ref, 1, []farm.Event{stdout("6-0", "in the window")}); err != nil {
		t.Fatal(err)
	}
	keys := b.documents.Keys()
	b.documents.Fail(farm.Errorf(farm.CodeUnavailable, "the object store does not answer"))
	_, err := b.Events(t.Context(), ref, "")
	wantCode(t, "Events", err, farm.CodeUnavailable)
	wantCode(t, "AppendEvents", b.AppendEvents(t.Context(), ref, 1, []farm.Event{stdout("7-0", large)}), farm.CodeUnavailable)
	b.documents.Fail(nil)
	for n, want := range []string{"0-1 0-2 3-0 4-0 5-0 6-0", "4-0 5-0 6-0", "5-0 6-0", "6-0"} {
		if n > 0 {
			if err := b.documents.Delete(t.Context(), keys[n-1]); err != nil {
				t.Fatal(err)
			}
		}
		if got := strings.Join(eventIDs(b.events(t, ref, "")), " "); got != want {
			t.Errorf("without %d of %d segments the events are %s, want %s", n, len(keys), got, want)
		}
	}
}
