package api_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/jupyter"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// page is what a notebook shows of its cells.
type page struct {
	output  map[string]string // of each cell, by the id of its message
	replies map[string][]string
	idle    map[string]bool
}

func newPage() *page {
	return &page{output: map[string]string{}, replies: map[string][]string{}, idle: map[string]bool{}}
}

// show does what a notebook does with a message.
func (p *page) show(m shownMessage) {
	id := m.Parent.ID
	switch m.Type {
	case "stream":
		p.output[id] += fmt.Sprint(m.Content["text"])
	case "clear_output":
		p.output[id] = ""
	case "execute_reply":
		p.replies[id] = append(p.replies[id], fmt.Sprint(m.Content["status"]))
	case "status":
		p.idle[id] = m.Content["execution_state"] == "idle"
	}
}

// until shows what comes until cells have ended.
func (p *page) until(f *frontend, cells ...string) {
	f.t.Helper()
	for _, id := range cells {
		for len(p.replies[id]) == 0 || !p.idle[id] {
			p.show(f.read())
		}
	}
}

// otherProcess is the farm behind another API process.
func (b *bundle) otherProcess() *bundle {
	b.t.Helper()
	second, err := api.New(api.Config{Heartbeat: time.Second}, api.Deps{Blobs: b.blobs, Queues: depths{}, Store: b.store, Submitter: b.worker})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(second.Stop)
	return b.over(second)
}

// steps is a store that gives one event at a time. While it is on, each read of events says behind which one it reads, and waits for its turn.
type steps struct {
	service.Store
	on    atomic.Bool
	asked chan string
	turn  chan struct{}
	last  atomic.Value // the id of the event that was read last
}

func (s *steps) Events(ctx context.Context, ref farm.Ref, after string) (store.EventBatch, error) {
	if s.on.Load() {
		s.asked <- after
		<-s.turn
	}
	batch, err := s.Store.Events(ctx, ref, after)
	if len(batch.Events) > 1 {
		batch.Events, batch.More = batch.Events[:1], true
	}
	if len(batch.Events) > 0 {
		s.last.Store(batch.Events[0].ID)
	}
	return batch, err
}

// inSteps is the farm behind an API process that reads events in steps.
func (b *bundle) inSteps() (*bundle, *steps) {
	b.t.Helper()
	s := &steps{Store: b.store, asked: make(chan string, 100), turn: make(chan struct{})}
	server, err := api.New(api.Config{Heartbeat: time.Second}, api.Deps{Blobs: b.blobs, Queues: depths{}, Store: s, Submitter: b.worker})
	testbed.Must(b.t, err)
	b.t.Cleanup(server.Stop)
	second := b.over(server)
	b.t.Cleanup(func() { close(s.turn) }) // nothing waits any more
	return second, s
}

// gone ends a connection, and waits until the kernel has none.
func (b *bundle) gone(f *frontend) {
	b.t.Helper()
	_ = f.conn.CloseNow()
	testbed.Until(b.t, "the client has left", func() bool {
		return *get[[]notebookKernel](b, 200, "GET", "/jupyter/api/kernels", nil)[0].Connections == 0
	})
}

// Output that was sent before is sent again to a client, and not to nobody: a client that connected again and again for a moment had the farm read it
// each time to its end.
func TestJupyterSendsNothingAgainToNobody(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, code, want string
		goesOn           bool // the cell runs: what comes next is read for the other clients
	}{{"Ended", "print one", "one\n", false}, {"Running", "block", "begun\n", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b, events := setup(t).inSteps()
			k := b.kernel()
			f := b.frontend(k.ID, "?session_id=s")
			cell := f.send("shell", "execute_request", map[string]any{"code": c.code})
			if c.goesOn {
				for f.read().Type != "stream" {
				}
			} else {
				newPage().until(f, cell)
			}
			b.gone(f)
			last := events.last.Load()
			events.on.Store(true)
			f = b.frontend(k.ID, "?session_id=s")
			for after := <-events.asked; after != ""; after = <-events.asked { // one was under way
				events.turn <- struct{}{}
			}
			events.turn <- struct{}{}
			<-events.asked // the next one
			b.gone(f)
			events.turn <- struct{}{}
			if c.goesOn {
				if after := <-events.asked; after != last {
					t.Fatalf("for nobody events are read behind %s, want %s", after, last)
				}
				events.on.Store(false)
				events.turn <- struct{}{}
				close(b.worker.gate)
			}
			f = b.frontend(k.ID, "?session_id=s")
			if !c.goesOn {
				if after := <-events.asked; after != "" {
					t.Fatalf("for nobody events are read behind %s", after)
				}
				events.on.Store(false)
				events.turn <- struct{}{}
			}
			p := newPage()
			f.next = 1
			p.until(f, cell, f.send("shell", "execute_request", map[string]any{"code": "print last"})) // it may have come in the middle of an end
			if p.output[cell] != c.want {
				t.Errorf("the client that is back shows %q, want %q", p.output[cell], c.want)
			}
		})
	}
}

// A client that comes back under its session sees the output of the cell that runs from its beginning, and its end.
func TestJupyterSessionsGoOn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		restart bool // the API restarts in between
	}{{"Reconnect", false}, {"OtherProcess", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			k := b.kernel()
			f := b.frontend(k.ID, "?session_id=s")
			cell := f.send("shell", "execute_request", map[string]any{"code": "block"})
			for f.read().Type != "stream" {
			}
			_ = f.conn.CloseNow()
			if c.restart {
				b = b.otherProcess()
			}
			f = b.frontend(k.ID, "?session_id=s")
			var got []string
			for {
				m := f.read()
				if m.Parent.ID != cell {
					continue
				}
				got = append(got, m.Type)
				if m.Type == "stream" {
					close(b.worker.gate)
				}
				if m.Type == "execute_reply" {
					break
				}
			}
			if joined := strings.Join(got, " "); !strings.Contains(joined, "clear_output stream") || strings.Count(joined, "stream") != 1 {
				t.Errorf("the client got %v", got)
			}
		})
	}
}

// Whenever a client connects again, it shows all output of its cells, once.
func TestJupyterReconnectsAtEveryPoint(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for n := range 11 { // a cell makes five messages, so the last ones are within the second cell and behind it
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			k := get[notebookKernel](&bundle{t: t, web: b.web}, 201, "POST", "/jupyter/api/kernels", nil)
			at := &bundle{t: t, web: b.web}
			f := at.frontend(k.ID, "?session_id=s")
			cells := []string{
				f.send("shell", "execute_request", map[string]any{"code": "print one"}),
				f.send("shell", "execute_request", map[string]any{"code": "print two"}),
			}
			p := newPage()
			for range n {
				m := f.read()
				p.show(m)
			}
			f.leave() // the new connection does not wait for the end of this one
			again := at.frontend(k.ID, "?session_id=s")
			p.until(again, cells...)
			third := at.frontend(k.ID, "?session_id=s") // it gets all that this client may not have got
			third.next = 2
			last := third.send("shell", "execute_request", map[string]any{"code": "print three"})
			p.until(third, last)
			want := map[string]string{cells[0]: "one\n", cells[1]: "two\n", last: "three\n"}
			if diff := cmp.Diff(want, p.output); diff != "" {
				t.Errorf("the notebook shows (-want +got):\n%s", diff)
			}
		})
	}
}

// Cells that wait behind one that runs are jobs: they go on when the API process ends, and their client gets all from the next one.
func TestJupyterCellsOutliveTheProcess(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := b.kernel()
	f := b.frontend(k.ID, "?session_id=s")
	cells := []string{f.send("shell", "execute_request", map[string]any{"code": "block"})}
	for _, word := range []string{"one", "two", "three"} {
		cells = append(cells, f.send("shell", "execute_request", map[string]any{"code": "print " + word}))
	}
	f.until(f.send("shell", "kernel_info_request", map[string]any{})) // all have come in
	b.server.Stop()
	f.closed(websocket.StatusServiceRestart)
	next := b.otherProcess()
	f = next.frontend(k.ID, "?session_id=s")
	close(b.worker.gate)
	p := newPage()
	p.until(f, cells...)
	want := map[string]string{cells[0]: "begun\n", cells[1]: "one\n", cells[2]: "two\n", cells[3]: "three\n"}
	if diff := cmp.Diff(want, p.output); diff != "" {
		t.Errorf("the notebook shows (-want +got):\n%s", diff)
	}
	for _, id := range cells {
		if diff := cmp.Diff([]string{"ok"}, p.replies[id]); diff != "" {
			t.Errorf("replies of %s (-want +got):\n%s", id, diff)
		}
	}
}

// Cells that wait are not run any more when the kernel restarts.
func TestJupyterRestartAbortsWaitingCells(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := b.kernel()
	f := b.frontend(k.ID, "?session_id=s")
	f.send("shell", "execute_request", map[string]any{"code": "block"})
	waiting := f.send("shell", "execute_request", map[string]any{"code": "print never"})
	f.until(f.send("shell", "kernel_info_request", map[string]any{})) // both have come in
	get[notebookKernel](b, 200, "POST", "/jupyter/api/kernels/"+k.ID+"/restart", nil)
	close(b.worker.gate)
	if diff := cmp.Diff([]string{"iopub status busy", "shell execute_reply aborted", "iopub status idle"}, f.until(waiting)); diff != "" {
		t.Errorf("the cell that waited (-want +got):\n%s", diff)
	}
}

// A proxy of Jupyter may open a connection that nobody reads beside the one that its client uses.
func TestJupyterConnectionsOfOneSession(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := b.kernel()
	f := b.frontend(k.ID, "?session_id=s")
	f.until(f.send("shell", "kernel_info_request", map[string]any{}))
	for range jupyter.MaxConnections - 1 {
		b.frontend(k.ID, "?session_id=s")
	}
	cell := f.send("shell", "execute_request", map[string]any{"code": "print one"})
	p := newPage()
	p.until(f, cell)
	if p.output[cell] != "one\n" {
		t.Errorf("the client's own connection shows %q", p.output[cell])
	}
	last := b.frontend(k.ID, "?session_id=s") // one more: an unused one ends, not the client's own
	p.until(last, cell)
	second := f.send("shell", "execute_request", map[string]any{"code": "print two"})
	p.until(f, second)
	for _, at := range []*frontend{f, last} {
		at.until(at.send("shell", "kernel_info_request", map[string]any{}))
	}
	if p.output[second] != "two\n" {
		t.Errorf("the client's own connection shows %q", p.output[second])
	}
	if list := get[[]notebookKernel](b, 200, "GET", "/jupyter/api/kernels", nil); *list[0].Connections > jupyter.MaxConnections {
		t.Errorf("the kernel has %d connections", *list[0].Connections)
	}
}

// A client says which cell its message belongs to, and which session is its own; neither gives it what is another's.
func TestJupyterForgedMessages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := b.kernel()
	owner, other := b.frontend(k.ID, "?session_id=owner"), b.frontend(k.ID, "?session_id=other")
	owner.next = 200
	cell := owner.send("shell", "execute_request", map[string]any{"code": "block"})
	for owner.read().Type != "stream" {
	}
	other.next = 100
	other.send("stdin", "input_reply", map[string]any{"value": "not asked for"})
	for _, kind := range []string{"execute_reply", "status", "", strings.Repeat("x", 257)} {
		f := b.frontend(k.ID, "")
		f.write(websocket.MessageText, []byte(fmt.Sprintf(`{"header":{"msg_id":"f","msg_type":%q,"session":"owner"},"parent_header":{"msg_id":%q},"channel":"shell","content":{}}`, kind, cell)))
		if kind == "" || len(kind) > 256 {
			f.closed(websocket.StatusInvalidFramePayloadData)
			continue
		}
		for m := f.read(); m.Parent.ID != "f" || m.Content["status"] != "error"; m = f.read() {
		}
	}
	close(b.worker.gate)
	p := newPage()
	p.until(owner, cell)
	if diff := cmp.Diff([]string{"ok"}, p.replies[cell]); diff != "" {
		t.Errorf("replies (-want +got):\n%s", diff)
	}
	p = newPage()
	p.until(other, other.send("shell", "execute_request", map[string]any{"code": "print mine"}))
}

// A client that never reads does not stop its cells, nor those of others.
func TestJupyterClientsThatNeverRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := b.kernel()
	silent, f := b.frontend(k.ID, "?session_id=silent"), b.frontend(k.ID, "?session_id=s")
	f.next = 100 // its messages have ids of their own
	word := strings.Repeat("x", 100_000)
	p := newPage()
	for range 20 { // more than its connection and what waits for it hold
		for id := silent.send("shell", "execute_request", map[string]any{"code": "print " + word}); !p.idle[id]; {
			p.show(f.read())
		}
	}
	cell := f.send("shell", "execute_request", map[string]any{"code": "print one"})
	p.until(f, cell)
	if p.output[cell] != "one\n" {
		t.Errorf("the other client shows %.100q", p.output[cell])
	}
}

// Other clients of a kernel see nothing of what the farm answers itself: refusals, what the kernel is, cells without code, interrupts.
func TestJupyterAnswersOfTheFarmAreForTheirClient(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := b.kernel()
	f, other := b.frontend(k.ID, "?session_id=s"), b.frontend(k.ID, "?session_id=o")
	other.next = 5000 // its messages have ids of their own
	f.until(f.send("shell", "execute_request", map[string]any{"code": ""}))
	f.until(f.send("shell", "conjure_request", map[string]any{}))
	f.until(f.send("control", "interrupt_request", map[string]any{}))
	block := f.send("shell", "execute_request", map[string]any{"code": "block"})
	f.until(f.send("shell", "kernel_info_request", map[string]any{}))
	for range jupyter.MaxWaiting {
		f.send("shell", "comm_info_request", map[string]any{})
	}
	if got := f.until(f.send("shell", "comm_info_request", map[string]any{})); !slices.Contains(got, "shell comm_info_reply error") {
		t.Errorf("a message beyond those that may wait is answered with %q", got)
	}
	for own := other.send("shell", "kernel_info_request", map[string]any{}); ; {
		m := other.read()
		if m.Parent.ID != own && m.Parent.ID != block && m.Parent.ID != "" {
			t.Errorf("another client sees %+v", m)
		}
		if m.Parent.ID == own && m.Content["execution_state"] == "idle" {
			return
		}
	}
}

// The messages of all clients of a tenant have a rate, however often they connect again.
func TestJupyterMessagesHaveARate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k, began := b.kernel(), time.Now()
	for range 13 { // 600 more than at once, at 500 in a second
		f := b.frontend(k.ID, "")
		go func() {
			for range 200 {
				f.send("shell", "kernel_info_request", map[string]any{})
			}
		}()
		for answers := 0; answers < 200; {
			if f.read().Type == "kernel_info_reply" {
				answers++
			}
		}
		_ = f.conn.CloseNow()
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("2,600 messages took %s", took)
	}
}

// What the farm left out of a cell's output is told in the cell.
func TestJupyterShowsNotes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f := b.frontend(b.kernel().ID, "")
	p := newPage()
	cell := f.send("shell", "execute_request", map[string]any{"code": "note Left out."})
	p.until(f, cell)
	if p.output[cell] != "[Left out.]\n" {
		t.Errorf("the notebook shows %q", p.output[cell])
	}
}
