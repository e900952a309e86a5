package service

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A list of a million bad rules once made a million problems, of which twenty were reported.
func TestNoMoreProblemsAreKeptThanReported(t *testing.T) {
	t.Parallel()
	for n, kept := range map[int]int{strict.MaxProblems - 1: strict.MaxProblems - 1, strict.MaxProblems: strict.MaxProblems, strict.MaxProblems + 1: strict.MaxProblems} {
		p := Call{}.problems()
		for i := range n {
			p.check("/allow_hosts/"+strconv.Itoa(i), farm.Errorf(farm.CodeTooLarge, "too large"))
		}
		if len(p.found) != kept || farm.CodeOf(p.err()) != farm.CodeTooLarge {
			t.Errorf("%d problems: %d are kept, %v", n, len(p.found), p.err())
		}
		p.addf("/name", "bad") // counts even where it is not kept
		if farm.CodeOf(p.err()) != farm.CodeInvalid || !p.of("/name") {
			t.Errorf("one of %d problems is not about size: %v", n, p.err())
		}
	}
}

// A slow reader keeps the copy that it reads, which is removed an hour after the last sign of life.
func TestASlowReaderKeepsItsCopy(t *testing.T) {
	t.Parallel()
	now, signs, removed := time.Unix(1e9, 0), 0, 0
	f := &taken{
		ReadCloser: io.NopCloser(iotest.OneByteReader(strings.NewReader("01234567"))), at: now,
		now:  func() time.Time { now = now.Add(chargeEvery/2 + 1); return now },
		keep: func() error { signs++; return nil },
		done: func() { removed++ },
	}
	got, err := io.ReadAll(f)
	if string(got) != "01234567" || err != nil || signs != 4 {
		t.Errorf("read %q, %v, with %d signs of life; want 4", got, err, signs)
	}
	if err := f.Close(); err != nil || removed != 1 {
		t.Errorf("closed: %v, removed %d times", err, removed)
	}
}

// hasty is an agent that answers each question for changes at once.
type hasty struct {
	answer string
	asked  []string // after which number
}

func (h *hasty) RoundTrip(r *http.Request) (*http.Response, error) {
	if h.asked = append(h.asked, r.URL.Query().Get("after")); len(h.asked) > 1000 {
		return nil, io.ErrUnexpectedEOF
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(h.answer))}, nil
}

type oneSandbox struct{ Store }

func (oneSandbox) Sandbox(context.Context, farm.Ref) (*farm.Sandbox, error) {
	return &farm.Sandbox{State: farm.SandboxReady}, nil
}

// A watch whose agent has no events and does not wait for some was asked without end: that of a polled watch did so, and one that was asked for
// events after a number that there is not yet.
func TestAWatchWithoutEventsIsAskedOncePerPause(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ answer, last, ids, after string }{
		"Nothing": {`{"events":[]}`, "7", "", "7"},
		"Lost":    {`{"events":[],"lost":true}`, "999999", ".0", "0"},
		"Of none": {`{"events":[],"lost":true}`, "0", "", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				agent, id := &hasty{answer: c.answer}, farm.NewID(farm.WatchPrefix)
				s := New(Deps{Store: oneSandbox{}, Agents: func(*farm.Sandbox) relay.Agent { return relay.Agent{Live: client.NewLive(agent)} }}, Options{})
				w, err := s.WatchFiles(t.Context(), "t", farm.NewID(farm.SandboxPrefix), Watching{Path: "/"}, id+"."+c.last)
				if err != nil {
					t.Fatal(err)
				}
				const pauses = 10
				ids := ""
				for end := time.Now().Add(pauses * outputPause); time.Now().Before(end); {
					events, err := w.Next(t.Context(), time.Until(end))
					if err != nil {
						t.Fatal(err)
					}
					for _, e := range events {
						ids += strings.TrimPrefix(e.ID, id)
					}
				}
				w.Close()
				if most := pauses + 3; ids != c.ids || len(agent.asked) > most || agent.asked[len(agent.asked)-1] != c.after {
					t.Errorf("events %q, want %q; asked %d times, want %d at most; in the end after %s, want %s",
						ids, c.ids, len(agent.asked), most, agent.asked[len(agent.asked)-1], c.after)
				}
			})
		})
	}
}

// endless is an agent that answers each question for a piece of a tar with an empty one.
type endless struct{ asked int }

func (e *endless) RoundTrip(*http.Request) (*http.Response, error) {
	if e.asked++; e.asked > 1000 {
		return nil, io.ErrUnexpectedEOF
	}
	answer := `{"next":"` + strconv.Itoa(e.asked) + `"}` + "\n"
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(answer))}, nil
}

// A tar of empty pieces, each of which names another one, kept a core busy for as long as its reader waited.
func TestATarOfEmptyPiecesEnds(t *testing.T) {
	t.Parallel()
	agent := &endless{}
	s := New(Deps{Store: oneSandbox{}, Agents: func(*farm.Sandbox) relay.Agent { return relay.Agent{Live: client.NewLive(agent)} }}, Options{})
	f, err := s.PackFS(t.Context(), "t", farm.NewID(farm.SandboxPrefix), "/")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = io.ReadAll(f)
	if farm.CodeOf(err) != farm.CodeInternal || agent.asked != 2 {
		t.Errorf("asked %d times: %v", agent.asked, err)
	}
}

// Input that a process does not read is offered again without end where the agent does not wait for it.
func TestInputThatIsNotReadIsSentOncePerPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		agent := &hasty{answer: `{"written":7}`}
		a := &Attachment{ProcessOutput: &ProcessOutput{}, writing: relay.Agent{Live: client.NewLive(agent)}}
		const pauses = 10
		for end := time.Now().Add(pauses * outputPause); time.Now().Before(end); {
			if at, err := a.Write(t.Context(), 7, []byte("x"), false); err != nil || at != 7 {
				t.Fatalf("%d, %v", at, err)
			}
		}
		if len(agent.asked) != pauses {
			t.Errorf("it was sent %d times in %d pauses", len(agent.asked), pauses)
		}
		agent.answer = `{"written":8}`
		began := time.Now()
		if at, err := a.Write(t.Context(), 7, []byte("x"), false); err != nil || at != 8 || !time.Now().Equal(began) {
			t.Errorf("input that is read: %d, %v, after %s", at, err, time.Since(began))
		}
		agent.answer = `{"written":6}`
		if at, err := a.Write(t.Context(), 7, []byte("x"), false); farm.CodeOf(err) != farm.CodeInternal {
			t.Errorf("an answer behind the beginning: %d, %v", at, err)
		}
	})
}

// Creates that no node can serve read the workers again, each for itself and one after the other, under a lock that every create of everybody waited for.
func TestReadsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const slow = 10 * time.Millisecond
		var (
			s      = Shared[int]{Pause: readPause}
			reads  int
			broken error
			all    sync.WaitGroup
		)
		get := func(ctx context.Context, fresh bool) (int, time.Duration, error) {
			began := time.Now()
			got, err := s.Get(ctx, began, noOlder[int](offeredFor, fresh), func(context.Context) (int, error) {
				reads++
				time.Sleep(slow)
				return reads, broken
			})
			return got, time.Since(began), err
		}
		got, took, err := get(t.Context(), false)
		testbed.Check(t, got == 1 && took == slow && err == nil, "at first: %d after %s, %v", got, took, err)
		got, took, err = get(t.Context(), false)
		testbed.Check(t, got == 1 && took == 0 && err == nil, "what is known: %d after %s, %v", got, took, err)

		for range 100 {
			all.Go(func() {
				got, took, err := get(t.Context(), true)
				testbed.Check(t, got == 2 && took == readPause && err == nil, "of a flood: %d after %s, %v", got, took, err)
			})
		}
		time.Sleep(readPause - slow/2) // the read that they share is in progress
		all.Go(func() {
			got, took, err := get(t.Context(), true)
			testbed.Check(t, got == 3 && took == readPause+slow/2 && err == nil, "asked during a read: %d after %s, %v", got, took, err)
		})
		got, took, err = get(t.Context(), false)
		testbed.Check(t, got == 1 && took == 0 && err == nil, "what is known beside a flood: %d after %s, %v", got, took, err)
		over, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, took, err = get(over, true)
		testbed.Check(t, took == time.Millisecond && errors.Is(err, context.DeadlineExceeded), "a caller that leaves: after %s, %v", took, err)
		all.Wait()
		testbed.Check(t, reads == 3, "%d reads", reads)

		time.Sleep(offeredFor)
		broken = errors.New("Redis is away")
		_, _, err = get(t.Context(), false)
		testbed.Check(t, errors.Is(err, broken), "without Redis: %v", err)
		broken = nil
		got, _, err = get(t.Context(), false)
		testbed.Check(t, got == 5 && err == nil, "after an error: %d, %v", got, err)
	})
}

// linking makes links, and nothing else.
type linking struct{ Blobs }

func (linking) Presign(context.Context, string, blob.PresignOptions) (string, error) {
	return "link", nil
}

// A link costs some 50 µs of a core, and a job has up to 10,000 artifacts.
func TestLinksAreMadeOnACore(t *testing.T) {
	t.Parallel()
	ctx := testbed.WithoutCore(t, budget.New(0), "acme")
	const small = budget.SmallBytes / linkWork // links that need none
	var linked []bool
	for _, a := range New(Deps{Blobs: linking{}}, Options{}).artifacts(ctx, make([]farm.Artifact, small+2)) {
		linked = append(linked, a.URL != "")
	}
	testbed.Diff(t, "artifacts with a link, without a core", append(slices.Repeat([]bool{true}, small), false, false), linked)
}

// A caller of a watch may read slowly: what it is given stays charged until it asks for more. 256 renames can have 12 MB.
func TestChangesAreChargedWhileTheyAreSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, hold := budget.New(64<<20).With(t.Context(), "acme", 0)
		defer hold.Release()
		request := ctx
		w := &FileWatch{s: New(Deps{}, Options{}), batches: make(chan fileBatch), sent: make(chan struct{})}
		ctx, w.hold = budget.Renew(ctx)
		testbed.Must(t, budget.Charge(ctx, 1<<20)) // for the first answer
		reading, end := context.WithCancel(ctx)
		w.end = end
		defer w.Close()
		w.reading.Go(func() { w.read(reading, []wire.Event{{Name: "ready"}}) })
		given, err := w.Next(ctx, time.Minute)
		testbed.Check(t, err == nil && len(given) == 1, "%v, %v", given, err)
		budget.Keep(request, 0) // as callers do at each heartbeat
		synctest.Wait()
		held := budget.Held(ctx)
		_, err = w.Next(ctx, time.Minute) // there is no sandbox to ask for more
		testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound && held == 1<<20 && budget.Held(ctx) == 0, "held %d, then %d; %v", held, budget.Held(ctx), err)
	})
}
