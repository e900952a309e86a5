package jupyter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// chargedSocket is a connection without its network, whose tenant may hold 7 MiB in large and 1 MiB in small messages.
func chargedSocket(t *testing.T) (*socket, *budget.Budget) {
	t.Helper()
	memory := budget.New(16 << 20)
	ctx, hold := memory.With(t.Context(), "acme", 0)
	t.Cleanup(hold.Release)
	return newSocket(ctx, 0), memory
}

func content(bytes int) *message { return &message{content: make([]byte, bytes)} }

func TestWhatWaitsForAClientIsCharged(t *testing.T) {
	t.Parallel()
	at, memory := chargedSocket(t)
	var used []int64
	note := func() { used = append(used, memory.Stats().Used) }
	for _, n := range []int{freeBytes, 1, 100_000} {
		at.offer(content(n))
		note()
	}
	for range 3 {
		at.taken(<-at.out)
		note()
	}
	if diff := cmp.Diff([]int64{0, 1, 100_001, 100_001 - freeBytes, 100_000 - freeBytes, 0}, used); diff != "" {
		t.Errorf("bytes that are charged (-want +got):\n%s", diff)
	}
	at.put(content(100_000))
	at.uncharge()
	at.end(errLeft)
	if at.offer(content(100_000)); memory.Stats().Used != 0 {
		t.Errorf("%d bytes are charged behind the end", memory.Stats().Used)
	}
}

// A message that is larger than what may wait is charged as it is, and takes all the room.
func TestLargeMessagesAreChargedAsTheyAre(t *testing.T) {
	t.Parallel()
	at, memory := chargedSocket(t)
	const large = 3 * waitingBytes
	if !at.put(content(large)) || memory.Stats().Used != large-freeBytes || at.room.TryAcquire(1) {
		t.Errorf("%d bytes are charged for %d", memory.Stats().Used, large)
	}
	if at.taken(<-at.out); memory.Stats().Used != 0 || !at.room.TryAcquire(waitingBytes) {
		t.Errorf("%d bytes are charged after it was taken", memory.Stats().Used)
	}
}

// Without memory put returns when its message is taken, since only its caller's charge covers it, and offer ends the connection.
func TestOneMessageWaitsWithoutMemory(t *testing.T) {
	t.Parallel()
	at, memory := chargedSocket(t)
	if _, ok := memory.TryAcquire("acme", memory.Share()); !ok {
		t.Fatal("the share is not free")
	}
	const large = 100_000
	sent := make(chan bool)
	go func() {
		sent <- at.put(content(large))
		sent <- at.put(content(large))
	}()
	for range 2 {
		m := <-at.out
		select {
		case <-sent:
			t.Fatal("put has returned before its message was taken")
		default:
		}
		at.taken(m)
		if !<-sent {
			t.Fatalf("the connection has ended: %v", context.Cause(at.ctx))
		}
	}
	at.offer(content(large))
	if err := context.Cause(at.ctx); !errors.Is(err, errMemory) || len(at.out) != 0 {
		t.Errorf("the end is %v, and %d messages wait; want %v and none", err, len(at.out), errMemory)
	}
}

func TestMissedMessagesAreBoundedAndCharged(t *testing.T) {
	t.Parallel()
	memory := budget.New(16 << 20)
	ctx, own := memory.With(t.Context(), "acme", 0)
	defer own.Release()
	kept := func(s *session) (sizes []int64) {
		for _, m := range s.missed {
			sizes = append(sizes, m.size())
		}
		return sizes
	}
	s := newSession(ctx, nil, "s")
	const large = 100_000
	for range 6 {
		s.keep(content(large))
	}
	s.keep(content(1))
	if diff := cmp.Diff([]int64{large, large, large, large, large, 1}, kept(s)); diff != "" || memory.Stats().Used != 5*large+1 {
		t.Errorf("%d bytes are charged; kept (-want +got):\n%s", memory.Stats().Used, diff)
	}
	for range 2 * maxMissed {
		s.keep(content(10))
	}
	if want := slices.Repeat([]int64{10}, maxMissed); !cmp.Equal(want, kept(s)) || memory.Stats().Used != 10*maxMissed {
		t.Errorf("%d messages are kept, and %d bytes charged; want %d of 10 bytes", len(s.missed), memory.Stats().Used, maxMissed)
	}
	hold, ok := memory.TryAcquire("acme", memory.Share())
	if !ok {
		t.Fatal("the share is not free")
	}
	s.keep(content(large))
	if len(s.missed) != 0 || memory.Stats().Used != hold.Bytes() {
		t.Errorf("without memory %d messages are kept", len(s.missed))
	}
	hold.Release()
	s.keep(content(large))
	s.forget()
	if s.keep(content(large)); len(s.missed) != 0 || memory.Stats().Used != 0 {
		t.Errorf("of a session that is forgotten %d messages are kept, and %d bytes charged", len(s.missed), memory.Stats().Used)
	}
}

// Large output is made into messages on the cores of its tenant.
func TestLargeOutputIsEncodedOnACore(t *testing.T) {
	t.Parallel()
	memory := budget.New(0)
	for more, want := range map[int]int{-1: 1, 0: 1, 1: 0} {
		text := strings.Repeat("x", budget.SmallBytes+more)
		for _, e := range []farm.Event{
			{Name: farm.EventStdout, Text: text},
			{Name: farm.EventDisplay, Display: &farm.RichResult{Mime: "text/plain", Data: text[len(text)/2:]}}, // it is converted, and encoded
		} {
			s := newSession(t.Context(), &kernel{server: &Server{cfg: Config{Now: time.Now}}}, "s")
			o := output{session: s, work: &work{}}
			if o.add(testbed.WithoutCore(t, memory, "acme"), e); len(s.missed) != want {
				t.Errorf("%s of %d bytes, without a core: %d messages, want %d", e.Name, len(text), len(s.missed), want)
			}
		}
	}
}

// Large messages, and large contents, are decoded on the cores of their tenant, of which it has half: here it has none left.
func TestLargeMessagesAreDecodedOnACore(t *testing.T) {
	t.Parallel()
	memory := budget.New(0)
	const begin, end = `{"header":{"msg_id":"1","msg_type":"execute_request"},"content":`, `}`
	for more, want := range map[int]bool{0: true, 1: false} {
		var code string
		content := func(size int) []byte { return []byte(`"` + strings.Repeat("x", size-2) + `"`) }
		text := slices.Concat([]byte(begin), content(budget.SmallBytes-5*64-len(begin+end)+more), []byte(end)) // each of its values counts as 64 bytes
		_, size, err := newSocket(t.Context(), 0).decode(testbed.WithoutCore(t, memory, "acme"), websocket.MessageText, text)
		if errors.Is(err, context.Canceled) == want || want && err != nil {
			t.Errorf("a message of %d bytes, without a core: %v", len(text), err)
		}
		if want && size != budget.SmallBytes {
			t.Errorf("a message of %d bytes counts as %d", len(text), size)
		}
		w := &work{message: message{content: content(budget.SmallBytes - 64)}, weight: budget.SmallBytes + more}
		if err := w.decode(testbed.WithoutCore(t, memory, "acme"), &code); errors.Is(err, context.Canceled) == want || (len(code) > 0) != want {
			t.Errorf("a content of a message that counts as %d, without a core: decoded %d, %v", w.weight, len(code), err)
		}
	}
}

// Who uses a notebook creates no sandbox.
func TestOutOfMemoryNamesWhatNotebooksCanDo(t *testing.T) {
	t.Parallel()
	raised := wire.CodeError{Name: farm.ErrorOutOfMemory, Value: "Use less memory at once, or " + farm.MoreMemory + "."}
	job := &wire.Job{State: "completed", Result: &wire.Result{Execute: &wire.ExecuteResult{Error: &raised}}}
	want := "Use less memory at once, or start a kernel with more memory (sandfarm jupyter --memory, or KERNEL_MEMORY_MB in its environment)."
	if got := failureOf(job).Value; got != want {
		t.Errorf("%q", got)
	}
}

// Each WebSocket that ended left a timer, which held its session for ten minutes, also when the session was forgotten for others or its kernel had
// ended: a client that connected again and again filled the memory.
func TestNothingHoldsASessionThatIsForgotten(t *testing.T) {
	t.Parallel()
	ctx, hold := budget.New(16<<20).With(t.Context(), "acme", 0)
	t.Cleanup(hold.Release)
	server, ref := &Server{kernels: map[farm.Ref]*kernel{}}, farm.Ref{Tenant: "acme", ID: "sbx_1"}
	k := &kernel{server: server, ref: ref, sessions: map[string]*session{}}
	server.kernels[ref] = k
	add := func() *session {
		s := newSession(ctx, k, "one")
		k.sessions[s.id] = s
		return s
	}

	s := add()
	s.linger()
	timer := s.kept
	if s.linger(); timer == nil || s.kept != timer {
		t.Error("a session has no timer, or a second one")
	}
	k.dropIdle().forget()
	if s.linger(); s.kept != nil || timer.Stop() {
		t.Error("a timer holds a session that is forgotten")
	}

	s = add()
	k.over = true
	if s.linger(); s.kept != nil || len(k.sessions) > 0 || len(server.kernels) > 0 {
		t.Error("a session of a kernel that has ended is kept")
	}
}

// startingSandbox is a store with one sandbox that waits for room, until it is ready. It counts what it is asked.
type startingSandbox struct {
	service.Store
	asked atomic.Int32
	ready atomic.Bool
}

func (s *startingSandbox) Sandbox(_ context.Context, ref farm.Ref) (*farm.Sandbox, error) {
	s.asked.Add(1)
	state := farm.SandboxQueued
	if s.ready.Load() {
		state = farm.SandboxReady
	}
	return &farm.Sandbox{ID: ref.ID, Tenant: ref.Tenant, State: state}, nil
}

func (s *startingSandbox) Jobs(context.Context, string, store.JobFilter, store.Page) ([]*farm.Job, string, error) {
	s.asked.Add(1)
	return nil, "", nil
}

func (s *startingSandbox) OfferedImages(context.Context) ([]farm.Image, error) { return nil, nil }

// waitingKernel is a kernel whose sandbox waits for room.
func waitingKernel(t *testing.T) (*startingSandbox, *kernel, func(id string) (*session, *socket)) {
	t.Helper()
	box := &startingSandbox{}
	server := New(Config{
		Service: service.New(service.Deps{Store: box}, service.Options{}), Now: time.Now,
		More:  func(context.Context, string, int) (int, error) { return 1, nil },
		Check: func(context.Context, access.Caller) error { return nil },
	})
	t.Cleanup(server.Close)
	ctx, hold := budget.New(16<<20).With(t.Context(), "acme", 0)
	t.Cleanup(hold.Release)
	k := &kernel{server: server, ref: farm.Ref{Tenant: "acme", ID: farm.NewID(farm.SandboxPrefix)}, sessions: map[string]*session{}}
	server.kernels[k.ref] = k
	return box, k, func(id string) (*session, *socket) {
		k.mu.Lock()
		s := k.sessions[id]
		if s == nil {
			s = newSession(ctx, k, id)
			k.sessions[id] = s
		}
		k.mu.Unlock()
		at := newSocket(ctx, 0)
		s.attach(ctx, at, true)
		return s, at
	}
}

// asks is a message to which the kernel has to be there.
func asks(id string) *work {
	return &work{size: 1, message: message{channel: channelShell, header: header{ID: id, Type: "kernel_info_request"}}}
}

// Each session whose client had sent a message and left looked for the start of the sandbox every two seconds, with a goroutine, as long as that took and
// whatever became of its key.
func TestOneLooksForTheStartOfAKernelAndOnlyForItsClients(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		box, k, connect := waitingKernel(t)
		for i := range MaxSessions {
			s, _ := connect(fmt.Sprint(i))
			s.take(asks(s.id))
		}
		const polls = 10
		synctest.Wait()
		time.Sleep(polls * startPoll)
		synctest.Wait()
		if n := box.asked.Load(); n != 2*(polls+1) {
			t.Errorf("for %d waiting sessions the store was asked %d times in %d rounds, want twice in each", MaxSessions, n, polls+1)
		}
		for _, s := range k.all() {
			s.detach(s.connections()[0])
			s.linger()
		}
		time.Sleep(startPoll)
		synctest.Wait()
		box.asked.Store(0)
		time.Sleep(keptSession - startPoll - time.Nanosecond)
		if n := box.asked.Load(); n != 0 || len(k.all()) != MaxSessions || k.listening {
			t.Errorf("without clients the store was asked %d times; %d sessions are kept, want %d", n, len(k.all()), MaxSessions)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if len(k.all()) != 0 || len(k.server.kernels) != 0 || len(k.streams) != 0 {
			t.Errorf("%d sessions of clients that have left are kept", len(k.all()))
		}
	})
}

// A client that is back before its session is forgotten gets its answers, and so does one that has left when another one sees the start.
func TestWorkThatHasWaitedForTheStartIsDone(t *testing.T) {
	t.Parallel()
	for name, returns := range map[string]string{"the same client": "left", "another client": "other"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				box, _, connect := waitingKernel(t)
				s, at := connect("left")
				s.take(asks("m1"))
				s.detach(at)
				time.Sleep(keptSession / 2)
				box.ready.Store(true)
				_, at = connect(returns)
				synctest.Wait()
				if returns == "other" {
					_, at = connect("left")
				}
				if got := replies(at); !slices.Contains(got, "kernel_info_reply") {
					t.Errorf("the client got %q", got)
				}
			})
		})
	}
}

// What a client that has left had sent is charged no longer than it is kept, and its cells that are jobs keep no place among the kernel's messages.
func TestWorkOfAForgottenSessionIsReleased(t *testing.T) {
	t.Parallel()
	_, k, connect := waitingKernel(t)
	s, at := connect("left")
	memory := budget.New(16 << 20)
	_, hold := memory.With(t.Context(), "acme", 0)
	hold.Grow(1000)
	w := asks("m1")
	w.hold = hold
	k.place(w.header.ID)
	s.take(w)
	cell := &work{cell: &executeContent{}, job: "job_1"}
	if s.over(cell); len(s.ended) != 1 {
		t.Fatalf("%d ended cells are kept, want 1", len(s.ended))
	}
	s.detach(at)
	if k.server.leave(s); memory.Stats().Used != 0 || len(s.queue) != 0 || s.bytes != 0 || len(k.streams) != 0 {
		t.Errorf("%d bytes are charged for %d messages, and %d cells have a place", memory.Stats().Used, len(s.queue), len(k.streams))
	}
	before := len(s.ended)
	if s.over(cell); before != 0 || len(s.ended) != 0 {
		t.Errorf("%d cells that ended before are kept, and %d behind", before, len(s.ended))
	}
}

// Messages that wait for their turn held what is kept for small requests, and what handled the first one of them waited for that.
func TestWaitingMessagesLeaveRoomForSmallRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		box, k, connect := waitingKernel(t)
		s, at := connect("busy")
		var charged []error
		k.server.cfg.Check = func(ctx context.Context, _ access.Caller) error { // of each message whose turn it is
			ctx, done := context.WithTimeout(ctx, time.Second)
			defer done()
			charged = append(charged, budget.Charge(ctx, budget.SmallBytes))
			return nil
		}
		const messages = 40 // of 56 KiB, of which the share for small requests has room for 18, and that for what lasts for 32
		for i := range messages {
			ctx, hold := budget.Renew(at.ctx)
			waiting, done := context.WithTimeout(ctx, time.Second)
			testbed.Must(t, budget.Charge(waiting, 56<<10))
			done()
			w := asks(fmt.Sprint(i))
			w.hold, w.header.Type = hold, "odd_request"
			s.take(w)
		}
		_, small := budget.Renew(at.ctx)
		for range 16 { // the tenant's share
			if !small.Grow(budget.SmallBytes) {
				t.Fatal("a small request of the tenant waits while messages wait for their turn")
			}
		}
		small.Release()
		box.ready.Store(true)
		time.Sleep(startPoll)
		synctest.Wait()
		if got := replies(at); strings.Count(strings.Join(got, " "), "odd_reply") != messages {
			t.Errorf("the client got %q", got)
		}
		if want := make([]error, messages); !slices.Equal(want, charged) {
			t.Errorf("what the messages charge when it is their turn: %v", charged)
		}
		at.uncharge()
		if small.Grow(7 << 20); small.Bytes() != 7<<20 {
			t.Error("at the end the tenant does not have its share")
		}
		small.Release()
	})
}

// A connection whose handshake failed took what its client had sent before, and one that attached while its session was forgotten had none.
func TestASessionIsKeptForWhoJoins(t *testing.T) {
	t.Parallel()
	box, k, connect := waitingKernel(t)
	first, at := connect("client")
	first.take(asks("m1"))
	first.detach(at)
	join := func(id string) *session {
		s, err := k.server.join(at.ctx, k.ref.Tenant, &wire.Sandbox{ID: k.ref.ID}, id)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	again, other := join("client"), join("other")
	if k.server.leave(again); again != first || k.sessions["client"] != first || k.dropIdle() != nil {
		t.Error("a session is forgotten that a connection joins")
	}
	again.joined() // the handshake failed
	other.joined()
	first.mu.Lock()
	if k.sessions["client"] != first || len(first.queue) != 1 || first.kept == nil {
		t.Error("a failed handshake took what waits for the start")
	}
	first.mu.Unlock()
	if k.sessions["other"] != nil {
		t.Error("a session without a connection is kept")
	}
	box.ready.Store(true)
}

// Cells that follow the request of a starting kernel's information are jobs at once: they run though their client has left.
func TestCellsOfAStartingKernelWaitForNoInformation(t *testing.T) {
	t.Parallel()
	k := &kernel{server: &Server{}}
	s := &session{kernel: k, queue: []*work{asks("m1"), {job: "job_1", cell: &executeContent{}}}}
	if !s.placed() {
		t.Error("a cell waits for its turn behind what does nothing in the sandbox")
	}
	s.queue = append(s.queue, &work{message: message{header: header{Type: "complete_request"}}})
	if s.placed() {
		t.Error("a cell overtakes a question to the kernel")
	}
}

// replies are the types of the messages that wait for a client.
func replies(at *socket) (types []string) {
	for len(at.out) > 0 {
		types = append(types, (<-at.out).header.Type)
	}
	return types
}
