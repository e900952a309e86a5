package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// events reads all events of a job after an id.
func (b *bundle) events(t *testing.T, ref farm.Ref, after string) []farm.Event {
	t.Helper()
	var events []farm.Event
	for {
		batch, err := b.Events(t.Context(), ref, after)
		testbed.Require(t, err == nil, "Events after %q = %v", after, err)
		if events = append(events, batch.Events...); !batch.More {
			return events
		}
		after = events[len(events)-1].ID
	}
}

func stdout(id, text string) farm.Event {
	return farm.Event{ID: id, Name: farm.EventStdout, Text: text}
}

func eventsOnceAndInOrder(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	ref := b.accept(t, Execute(box.ID)).Job.Ref()
	job := b.claim(t, ref, "w").Job
	ctx := t.Context()
	for _, part := range [][]farm.Event{
		{stdout("3-0", "a"), stdout("5-0", "b")},
		{stdout("3-0", "a"), stdout("5-0", "b"), stdout("5-1", "c")}, // a takeover replays
		{stdout("", "d"), stdout("", "e")},
		{stdout("10-0", "f"), stdout("9-0", "too old")},
	} {
		testbed.Must(t, b.AppendEvents(ctx, ref, 1, part))
	}
	_, err := b.Finish(ctx, store.Finish{Ref: ref, Attempt: job.Attempt, State: farm.JobCompleted, LastEvent: 4})
	testbed.Must(t, err)
	err = b.AppendEvents(ctx, ref, 1, []farm.Event{stdout("99-0", "late"), stdout("", "late")})
	testbed.Check(t, err == nil, "late events = %v, want them skipped", err)
	want := []farm.Event{
		{ID: "0-1", Name: farm.EventState, State: farm.JobQueued},
		{ID: "0-2", Name: farm.EventState, State: farm.JobRunning},
		stdout("3-0", "a"), stdout("5-0", "b"), stdout("5-1", "c"), stdout("5-2", "d"), stdout("5-3", "e"), stdout("10-0", "f"),
		{ID: "11-0", Name: farm.EventState, State: farm.JobCompleted},
	}
	testbed.Diff(t, "events", want, b.events(t, ref, ""))
	for after, from := range map[string]int{"0-2": 2, "5-1": 5, "5": 4, "7-9": 7, "11-0": 9} {
		got := b.events(t, ref, after)
		diff := cmp.Diff(want[from:], got)
		testbed.Check(t, diff == "" || len(got)+len(want[from:]) <= 0, "events after %s (-want +got):\n%s", after, diff)
	}
	for _, bad := range []string{"x", "-", "1-", "-1", "1-2-3", "+1", "99999999999999999999", strings.Repeat("9", 300)} {
		_, err := b.Events(ctx, ref, bad)
		wantCode(t, "after "+bad, err, farm.CodeInvalid)
	}
}

// endCarriesEvents ends a job with its last events: those that are newer than what was sent before are added, once, before the final state.
func endCarriesEvents(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	ref := b.accept(t, Execute(box.ID)).Job.Ref()
	b.claim(t, ref, "w")
	testbed.Must(t, b.AppendEvents(t.Context(), ref, 1, []farm.Event{stdout("1-1", "a")}))
	full := strings.Repeat("\x01", store.EndEventBytes-3) // each byte becomes six
	end := store.Finish{
		Ref: ref, Attempt: 1, State: farm.JobCompleted, LastEvent: 4, Token: "once",
		Events: []farm.Event{stdout("1-1", "a"), stdout("2-1", "b"), stdout("2-2", full), {ID: "3-1", Name: farm.EventProgress, Progress: &farm.Progress{Message: "ü"}}},
	}
	for range 2 { // its answer may be lost
		_, err := b.Finish(t.Context(), end)
		testbed.Must(t, err)
	}
	want := []farm.Event{
		{ID: "0-1", Name: farm.EventState, State: farm.JobQueued},
		{ID: "0-2", Name: farm.EventState, State: farm.JobRunning},
		stdout("1-1", "a"), stdout("2-1", "b"), stdout("2-2", full),
		{ID: "3-1", Name: farm.EventProgress, Progress: &farm.Progress{Message: "ü"}},
		{ID: "5-0", Name: farm.EventState, State: farm.JobCompleted},
	}
	testbed.Diff(t, "events", want, b.events(t, ref, ""))
	_, err := b.Events(t.Context(), ref, "5-1")
	testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid, "events behind the last one of a job that has ended: %v, want %s", err, farm.CodeInvalid)
}

// watchMissesNothing lets many readers follow a job by Watch and Events alone while it writes: each sees all of it.
func watchMissesNothing(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	ref := b.accept(t, Execute(box.ID)).Job.Ref()
	const readers, events = 20, 200
	var wg sync.WaitGroup
	follow := func() {
		w, err := b.Watch(t.Context(), ref.ID)
		if err != nil {
			t.Errorf("Watch = %v", err)
			return
		}
		defer w.Close()
		after, seen := "", 0
		for {
			got, err := b.Events(t.Context(), ref, after)
			if err != nil {
				t.Errorf("Events = %v", err)
				return
			}
			for _, e := range got.Events {
				after = e.ID
				seen++
				if e.State.Final() {
					testbed.Diff(t, "events", events+3, seen)
					return
				}
			}
			select {
			case <-w.C():
			case <-time.After(timeout):
				t.Errorf("no signal behind event %s", after)
				return
			}
		}
	}
	for range readers / 2 {
		wg.Go(follow)
	}
	wg.Go(func() {
		c, err := b.Claim(t.Context(), ref, "w")
		if err != nil {
			t.Errorf("Claim = %v", err)
			return
		}
		for i := range events {
			err := b.AppendEvents(t.Context(), ref, 1, []farm.Event{stdout(fmt.Sprintf("%d-0", i+1), "x")})
			testbed.Check(t, err == nil, "AppendEvents = %v", err)
		}
		_, err = b.Finish(t.Context(), store.Finish{Ref: ref, Attempt: c.Job.Attempt, State: farm.JobCompleted, LastEvent: events})
		testbed.Check(t, err == nil, "Finish = %v", err)
	})
	for range readers / 2 {
		wg.Go(follow) // these come in the middle
	}
	wg.Wait()
}

// watchOfTheEnd sees the end of a job, and nothing of what happens before.
func watchOfTheEnd(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	ref := b.accept(t, Execute(box.ID)).Job.Ref()
	all, err := b.Watch(t.Context(), ref.ID)
	testbed.Must(t, err)
	defer all.Close()
	end, err := b.Watch(t.Context(), ref.ID)
	testbed.Must(t, err)
	defer end.Close()
	end.OnlyEnd()
	fires := func(w *store.Watch, what string) {
		t.Helper()
		select {
		case <-w.C():
		case <-time.After(timeout):
			t.Fatalf("no signal: %s", what)
		}
	}
	attempt := b.claim(t, ref, "w").Job.Attempt
	fires(all, "the job runs")
	testbed.Must(t, b.AppendEvents(t.Context(), ref, attempt, []farm.Event{stdout("1-0", "x")}))
	fires(all, "output")
	select {
	case <-end.C():
		t.Error("the watch of the end fires before it")
	default:
	}
	_, err = b.Finish(t.Context(), store.Finish{Ref: ref, Attempt: attempt, State: farm.JobCompleted})
	testbed.Must(t, err)
	fires(all, "the job has ended")
	fires(end, "the job has ended")
}

// endCarriesTheRecord ends jobs that are waited for: the message of the end has the record, unless it is too long, and Reload with the watch gives
// what the record says.
func endCarriesTheRecord(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	for name, c := range map[string]struct {
		end   store.Finish
		reads bool
	}{
		"short":     {end: store.Finish{State: farm.JobCompleted, Result: &farm.Result{Execute: &farm.ExecuteResult{Stdout: "a/\"ü\x00\n", Rich: []farm.RichResult{}}}}},
		"error":     {end: store.Finish{State: farm.JobFailed, Error: &farm.JobError{Code: farm.CodeInvalid, Message: "no"}}},
		"bare":      {end: store.Finish{State: farm.JobCompleted}},
		"long":      {end: store.Finish{State: farm.JobCompleted, Result: &farm.Result{Execute: &farm.ExecuteResult{Stdout: strings.Repeat("x", 10<<10)}}}, reads: true},
		"in object": {end: store.Finish{State: farm.JobCompleted, Result: &farm.Result{Execute: &farm.ExecuteResult{Stdout: strings.Repeat("x", 2*store.InlineBytes)}}}},
	} {
		accepted := b.accept(t, Execute(box.ID)).Job
		watch, err := b.Watch(t.Context(), accepted.ID)
		testbed.Must(t, err)
		watch.OnlyEnd()
		c.end.Ref, c.end.Attempt, c.end.Timings = accepted.Ref(), b.claim(t, accepted.Ref(), "w").Job.Attempt, farm.Timings{RunMS: 1.5, UploadMS: 2}
		if now, err := b.Reload(t.Context(), accepted, watch); err != nil || now.State != farm.JobRunning {
			t.Errorf("%s: before the end Reload = %+v, %v; want the record", name, now, err)
		}
		_, err = b.Finish(t.Context(), c.end)
		testbed.Must(t, err)
		select {
		case <-watch.C():
		case <-time.After(timeout):
			t.Fatalf("%s: the watch of the end does not fire", name)
		}
		want, err := b.Reload(t.Context(), accepted, nil)
		testbed.Require(t, err == nil && want.State == c.end.State, "%s: the record is %+v, %v", name, want, err)
		record := b.prefix + "{" + Tenant + "}:job:" + accepted.ID
		testbed.Must(t, b.rdb.Rename(t.Context(), record, record+".away").Err())
		got, err := b.Reload(t.Context(), accepted, watch)
		if c.reads {
			wantCode(t, name+" without its record", err, farm.CodeNotFound)
		} else if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: from the message %v (-record +message):\n%s", name, err, diff)
		}
		watch.Close()
	}
}

func watchUnsubscribes(t *testing.T, factory Factory) {
	b := setup(t, factory)
	var wg sync.WaitGroup
	for reader := range 20 {
		wg.Go(func() {
			for i := range 20 {
				w, err := b.Watch(t.Context(), fmt.Sprintf("job_%d", (reader+i)%5))
				if err != nil {
					t.Errorf("Watch = %v", err)
					return
				}
				w.Close()
				w.Close()
			}
		})
	}
	wg.Wait()
	for deadline := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		channels, err := b.rdb.PubSubChannels(t.Context(), b.prefix+"w:*").Result()
		testbed.Must(t, err)
		if diff := cmp.Diff([]string{b.prefix + "w:"}, channels); diff == "" {
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("subscriptions that are left (-want +got):\n%s", diff)
		}
	}
}

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
	testbed.Must(t, err)
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
			testbed.Must(t, b.AppendEvents(t.Context(), ref, 1, batch))
		}
		want = append(want, batch...)
		n := b.windowBytes(t, ref)
		testbed.Require(t, n <= window, "Redis has %d bytes of events", n)
	}
	b.finish(t, b.job(t, ref), farm.JobCompleted)
	want = append(want, farm.Event{ID: fmt.Sprintf("%d-0", seq+1), Name: farm.EventState, State: farm.JobCompleted})
	for _, from := range []int{0, 1, 2, 3, 50, len(want) / 2, len(want) - 2, len(want) - 1, len(want)} {
		after := ""
		if from > 0 {
			after = want[from-1].ID
		}
		testbed.Diff(t, fmt.Sprintf("events after %q", after), eventIDs(want[from:]), eventIDs(b.events(t, ref, after)))
	}
	diff := cmp.Diff(want, b.events(t, ref, ""))
	testbed.Check(t, diff == "", "the events differ in more than their ids")
	for after := ""; ; {
		batch, err := b.Events(t.Context(), ref, after)
		testbed.Must(t, err)
		size := 0
		for _, e := range batch.Events {
			after, size = e.ID, size+len(e.Text)
		}
		testbed.Check(t, size <= segment || len(batch.Events) <= 1, "a batch has %d events of %d bytes together", len(batch.Events), size)
		testbed.Diff(t, "the job", farm.JobCompleted, batch.State)
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
			testbed.Must(t, b.AppendEvents(t.Context(), ref, 0, []farm.Event{e}))
			if c.documents == 0 {
				b.wantDocuments(t, fmt.Sprintf("after %d bytes", c.size), 0)
				break
			}
		}
		if c.documents > 0 {
			b.wantDocuments(t, fmt.Sprintf("after %d bytes", c.size), c.documents)
			got := b.events(t, ref, "3-0")
			testbed.Check(t, len(got) == 1 && got[0].ID == "3-1", "events behind the segment are %v", got)
		}
	}
}

// eventsAreEncodedInParts: an event behind the first segment is not encoded before that is stored. One that cannot be encoded shows it. No part ends
// between the types of a value.
func eventsAreEncodedInParts(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ref := b.runningJob(t)
	bad := farm.Event{ID: "6-0", Name: farm.EventArtifact, Artifact: &farm.Artifact{CreatedAt: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)}}
	third := strings.Repeat("x", segment/3)
	events := []farm.Event{stdout("3-0", third), stdout("4-0", third), stdout("5-0", third), bad}
	err := b.AppendEvents(t.Context(), ref, 1, events)
	testbed.Check(t, err != nil, "an event of the year 10,000 was encoded")
	testbed.Diff(t, "events", []string{"3-0", "4-0"}, eventIDs(b.events(t, ref, "0-2")))
	testbed.Must(t, b.AppendEvents(t.Context(), ref, 1, events[:3])) // a retry
	testbed.Diff(t, "events", []string{"3-0", "4-0", "5-0"}, eventIDs(b.events(t, ref, "0-2")))

	value := func(n int, more bool) farm.Event {
		return farm.Event{ID: fmt.Sprintf("7-%d", n), Name: farm.EventDisplay, Display: &farm.RichResult{Mime: "text/plain", Data: third, More: more}}
	}
	bad.ID = "9-0"
	err = b.AppendEvents(t.Context(), ref, 1, []farm.Event{value(0, true), value(1, true), value(2, true), value(3, false), stdout("8-0", "x"), bad})
	testbed.Check(t, err != nil, "an event of the year 10,000 was encoded")
	testbed.Diff(t, "all types of a value", []string{"7-0", "7-1", "7-2", "7-3"}, eventIDs(b.events(t, ref, "5-0")))
}

// eventsAreFenced: a worker whose job was taken over appends nothing and leaves no objects, and the reader sees what its successor wrote.
func eventsAreFenced(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ref := b.runningJob(t)
	small, big := stdout("3-0", "first"), stdout("4-0", large)
	testbed.Must(t, b.AppendEvents(t.Context(), ref, 1, []farm.Event{small}))
	b.claim(t, ref, "w2") // w has no heartbeat
	for _, late := range []farm.Event{stdout("5-0", "late"), stdout("5-0", large)} {
		err := b.AppendEvents(t.Context(), ref, 1, []farm.Event{late})
		testbed.Check(t, errors.Is(err, store.ErrFenced), "late AppendEvents of %d bytes = %v, want ErrFenced", len(late.Text), err)
	}
	b.wantDocuments(t, "after late events", 0)
	testbed.Must(t, b.AppendEvents(t.Context(), ref, 2, []farm.Event{big}))
	b.wantDocuments(t, "after large events", 1)
	b.finish(t, b.job(t, ref), farm.JobCompleted)
	err := b.AppendEvents(t.Context(), ref, 2, []farm.Event{stdout("99-0", large)})
	testbed.Check(t, err == nil, "AppendEvents to a final job = %v, want it skipped", err)
	b.wantDocuments(t, "after the end", 1)
	got := b.events(t, ref, "")
	diff := cmp.Diff([]farm.Event{small, big}, got[2:4])
	testbed.Check(t, diff == "" && len(got) == 5, "%d events (-want +got):\n%s", len(got), diff)
}

// eventsWithoutTheirSegments: a reader continues after events whose object is lost, and fails while the object store does not answer.
func eventsWithoutTheirSegments(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ref := b.runningJob(t)
	for seq := 3; seq < 6; seq++ {
		testbed.Must(t, b.AppendEvents(t.Context(), ref, 1, []farm.Event{stdout(fmt.Sprintf("%d-0", seq), large)}))
	}
	testbed.Must(t, b.AppendEvents(t.Context(), ref, 1, []farm.Event{stdout("6-0", "in the window")}))
	keys := b.documents.Keys()
	b.documents.Fail(farm.Errorf(farm.CodeUnavailable, "the object store does not answer"))
	_, err := b.Events(t.Context(), ref, "")
	wantCode(t, "Events", err, farm.CodeUnavailable)
	wantCode(t, "AppendEvents", b.AppendEvents(t.Context(), ref, 1, []farm.Event{stdout("7-0", large)}), farm.CodeUnavailable)
	b.documents.Fail(nil)
	for n, want := range []string{"0-1 0-2 3-0 4-0 5-0 6-0", "4-0 5-0 6-0", "5-0 6-0", "6-0"} {
		if n > 0 {
			testbed.Must(t, b.documents.Delete(t.Context(), keys[n-1]))
		}
		testbed.Diff(t, fmt.Sprintf("without %d of %d segments the events", n, len(keys)), want, strings.Join(eventIDs(b.events(t, ref, "")), " "))
	}
}
