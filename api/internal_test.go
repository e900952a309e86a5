package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// slowAudit is a store that takes nothing until it is released.
type slowAudit struct {
	begun, release chan struct{}
	entries        map[string]int // that were written, by tenant
	missed         int
}

func (s *slowAudit) AppendAudit(_ context.Context, entries []farm.AuditEntry) error {
	select {
	case s.begun <- struct{}{}:
	default:
	}
	<-s.release
	for _, e := range entries {
		s.entries[e.Tenant]++
		s.missed += e.Missed
	}
	return nil
}

// While Redis is slow, the floods of one tenant, or of two, took all the places in memory, and entries of others were dropped.
func TestFloodsLeaveRoomInTheAudit(t *testing.T) {
	t.Parallel()
	to := &slowAudit{begun: make(chan struct{}, 1), release: make(chan struct{}), entries: map[string]int{}}
	a := &auditor{store: to, log: slog.New(slog.DiscardHandler), now: time.Now}
	a.add(t.Context(), farm.AuditEntry{Tenant: "first"})
	<-to.begun // nothing leaves the queue any more
	for range auditWaiting {
		a.add(t.Context(), farm.AuditEntry{Tenant: "loud"})
	}
	for range auditWaiting {
		a.add(t.Context(), farm.AuditEntry{Tenant: "louder"})
	}
	a.add(t.Context(), farm.AuditEntry{Tenant: "quiet"})
	close(to.release)
	a.close()
	if to.entries["quiet"] != 1 || to.entries["loud"] != auditWaiting/2 || to.entries["louder"] != auditWaiting/4 || to.missed != auditWaiting*5/4 {
		t.Errorf("written: %v, %d missed", to.entries, to.missed)
	}
	a.add(t.Context(), farm.AuditEntry{Tenant: "loud"}) // there is room again
	a.close()
	if to.entries["loud"] != auditWaiting/2+1 {
		t.Errorf("written: %v", to.entries)
	}
}

// Forms come from callers: each part has a path that the service judges, or the form is refused with a sentence.
func FuzzForm(f *testing.F) {
	part := func(head, content string) string { return "--b\r\n" + head + "\r\n\r\n" + content + "\r\n" }
	for _, seed := range []string{
		"", "--b--\r\n", part(`Content-Disposition: form-data; name="f"; filename="a.txt"`, "x") + "--b--\r\n",
		part(`Content-Disposition: form-data; name="path"`, "dir") + part(`Content-Disposition: form-data; name="f"; filename="../a"`, "x") + "--b--\r\n",
		part(`Content-Disposition: form-data; name="f"; filename*=UTF-8''%2e%2e%2fx`, "x"), part(`Content-Disposition: form-data; filename="a`, "x"),
		part(`Content-Disposition: attachment`, "x"), part("Content-Transfer-Encoding: quoted-printable\r\nContent-Disposition: form-data; name=path", "=2e=2e"), "--b\r\n\r\n--b\r\n\r\n--b",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		body := bytes.NewReader(in)
		form := &form{body: body, reader: rest.NewParts(t.Context(), body, "b")}
		for parts := 0; ; parts++ {
			if parts > len(in) {
				t.Fatal("the form does not end")
			}
			part, err := form.next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				if farm.CodeOf(err) != farm.CodeInvalid {
					t.Fatalf("the form was refused with %q: %v", farm.CodeOf(err), err)
				}
				return
			}
			if len(part.Path) > len(in) {
				t.Fatalf("a path of %d bytes", len(part.Path))
			}
			_, _ = io.Copy(io.Discard, part.Content)
		}
	})
}

// resized is a process whose sizes are counted. The first one is set when release is closed.
type resized struct {
	sizes   chan farm.TerminalSize
	release chan struct{}
	wrote   chan struct{}
}

func (p *resized) Start() int64 { return 0 }

func (p *resized) NextPiece(ctx context.Context, _ time.Duration) (farm.Output, bool, error) {
	<-ctx.Done()
	return farm.Output{}, false, context.Cause(ctx)
}

func (p *resized) Resize(_ context.Context, size farm.TerminalSize) error {
	p.sizes <- size
	<-p.release
	return nil
}

func (p *resized) Write(_ context.Context, from int64, b []byte, _ bool) (int64, error) {
	close(p.wrote)
	return from + int64(len(b)), nil
}

// Each size is a call to the worker, and a flood of them went on after its client had left.
func TestOnlyTheNewestSizeIsSet(t *testing.T) {
	t.Parallel()
	p := &resized{sizes: make(chan farm.TerminalSize, 1000), release: make(chan struct{}), wrote: make(chan struct{})}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = serveAttached(r.Context(), w, r, attachConfig{Heartbeat: time.Minute, Stall: time.Minute}, p)
	}))
	t.Cleanup(web.Close)
	conn, _, err := websocket.Dial(t.Context(), web.URL, nil) //nolint:bodyclose // a WebSocket has none
	testbed.Must(t, err)
	defer func() { _ = conn.CloseNow() }()
	ctx := conn.CloseRead(t.Context())
	send := func(message []byte) { testbed.Must(t, conn.Write(ctx, websocket.MessageBinary, message)) }
	send(wire.AppendAttachSize(nil, wire.TerminalSize{Cols: 1, Rows: 1}))
	testbed.Diff(t, "the first size", farm.TerminalSize{Cols: 1, Rows: 1}, <-p.sizes) // it is being set
	for i := range 500 {
		send(wire.AppendAttachSize(nil, wire.TerminalSize{Cols: 2 + i, Rows: 1}))
	}
	send([]byte{byte(wire.AttachStdin), 'x'})
	testbed.Must(t, conn.Ping(ctx)) // the answer says that all has been read
	close(p.release)
	<-p.wrote // in its turn
	testbed.Diff(t, "the second size", farm.TerminalSize{Cols: 501, Rows: 1}, <-p.sizes)
	testbed.Check(t, len(p.sizes) == 0, "%d more sizes were set", len(p.sizes))
}
