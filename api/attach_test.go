package api_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// attached is the caller's end of an attachment.
type attached struct {
	t     *testing.T
	conn  *websocket.Conn
	text  string // all output
	last  uint64 // number of the last piece
	taken uint64
}

// attach opens a WebSocket; query begins with a question mark.
func (f *liveFarm) attach(one, query string, headers ...string) *attached {
	f.t.Helper()
	conn, answer, err := f.dial(one, query, headers...)
	if err != nil {
		f.t.Fatalf("attach: %v, %v", answer, err)
	}
	return &attached{t: f.t, conn: conn}
}

func (f *liveFarm) dial(one, query string, headers ...string) (*websocket.Conn, *http.Response, error) {
	options := &websocket.DialOptions{HTTPHeader: http.Header{}}
	for i := 0; i < len(headers); i += 2 {
		options.HTTPHeader.Set(headers[i], headers[i+1])
	}
	ctx, done := context.WithTimeout(f.t.Context(), time.Minute)
	defer done()
	conn, answer, err := websocket.Dial(ctx, f.web.URL+one+"/attach"+query, options) //nolint:bodyclose // a WebSocket has none
	if err == nil {
		conn.SetReadLimit(-1)
		f.t.Cleanup(func() { _ = conn.CloseNow() })
	}
	return conn, answer, err
}

func (a *attached) send(kind wire.AttachKind, text string) {
	a.t.Helper()
	testbed.Must(a.t, a.conn.Write(a.t.Context(), websocket.MessageBinary, append([]byte{byte(kind)}, text...)))
}

// next reads one message.
func (a *attached) next() (kind wire.AttachKind, data []byte) {
	a.t.Helper()
	kind, data, err := a.read()
	testbed.Must(a.t, err)
	return kind, data
}

func (a *attached) read() (kind wire.AttachKind, data []byte, err error) {
	ctx, done := context.WithTimeout(a.t.Context(), time.Minute)
	defer done()
	form, raw, err := a.conn.Read(ctx)
	if err != nil {
		return 0, nil, err
	}
	if form != websocket.MessageBinary || len(raw) < 1 {
		a.t.Fatalf("%v %q", form, raw)
	}
	kind, data = wire.AttachKind(raw[0]), raw[1:]
	switch kind {
	case wire.AttachStdout, wire.AttachStderr, wire.AttachDropped, wire.AttachExit:
		number := binary.BigEndian.Uint64(data)
		if number != a.last+1 && a.last != 0 && kind != wire.AttachDropped {
			a.t.Errorf("piece %d follows %d", number, a.last)
		}
		a.last, data = number, data[8:]
		if kind == wire.AttachStdout || kind == wire.AttachStderr {
			a.text += string(data)
		}
	case wire.AttachTaken:
		a.taken = binary.BigEndian.Uint64(data)
	}
	return kind, data, nil
}

// until reads messages until ok.
func (a *attached) until(ok func() bool) {
	a.t.Helper()
	for !ok() {
		a.next()
	}
}

// ends checks that the farm closes the connection with a code, and says why.
func (a *attached) ends(code int, why string) {
	a.t.Helper()
	for {
		_, _, err := a.read()
		if e, ok := errors.AsType[websocket.CloseError](err); ok {
			if int(e.Code) != code || !strings.Contains(e.Reason, why) {
				a.t.Errorf("closed with %d %q, want %d %q", e.Code, e.Reason, code, why)
			}
			return
		}
		if err != nil {
			a.t.Errorf("ended without a code: %v", err)
			return
		}
	}
}

func TestAttach(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	base := "/v1/sandboxes/" + f.sandbox() + "/processes"
	made := get[wire.Process](f.bundle, http.StatusCreated, "POST", base, `{"command":"echo problem >&2; cat; printf '\\377'; exit 3","stdin":true}`)
	a, other := f.attach(base+"/"+made.ID, ""), f.attach(base+"/"+made.ID, "")
	if kind, data := a.next(); kind != wire.AttachStderr || string(data) != "problem\n" {
		t.Errorf("%d %q", kind, data)
	}
	a.send(wire.AttachStdin, "typed\n")
	a.until(func() bool { return a.taken == 6 && strings.HasSuffix(a.text, "typed\n") })
	other.send(wire.AttachStdin, "by another\n")
	other.until(func() bool { return other.taken == 11 && strings.HasSuffix(other.text, "typed\nby another\n") })
	a.send(wire.AttachEnd, "")
	for {
		kind, data := a.next()
		if kind != wire.AttachExit {
			continue
		}
		var end wire.ExitData
		testbed.Must(t, json.Unmarshal(data, &end))
		if end.ExitCode != 3 || a.text != "problem\ntyped\nby another\n\xff" {
			t.Errorf("%+v after %q", end, a.text)
		}
		break
	}
	a.ends(1000, "exited")
	other.ends(1000, "exited")
	late := f.attach(base+"/"+made.ID, fmt.Sprint("?after=", a.last-1))
	if kind, _ := late.next(); kind != wire.AttachExit || late.text != "" {
		t.Errorf("%d %q", kind, late.text)
	}
}

func TestAttachToATerminal(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	base := "/v1/sandboxes/" + f.sandbox() + "/processes"
	made := get[wire.Process](f.bundle, http.StatusCreated, "POST", base, `{"argv":["env","PS1=next> ","sh"],"pty":{"cols":80,"rows":24}}`)
	a := f.attach(base+"/"+made.ID, "")
	a.send(wire.AttachResize, string(wire.AppendAttachSize(nil, wire.TerminalSize{Cols: 333, Rows: 44})[1:]))
	a.send(wire.AttachStdin, "stty size; cat\n")
	a.until(func() bool { return strings.Contains(a.text, "44 333\r\n") })
	a.send(wire.AttachStdin, "ready\n")
	a.until(func() bool { return strings.Count(a.text, "ready\r\n") == 2 }) // cat runs
	a.send(wire.AttachStdin, "\x03")                                        // control-C ends cat, and not the shell
	a.until(func() bool {                                                   // what is typed before the prompt may be lost, on any terminal
		_, after, _ := strings.Cut(a.text, "^C")
		return strings.Contains(after, "next> ")
	})
	a.send(wire.AttachStdin, "echo al''ive; exit 5\n")
	a.until(func() bool { return strings.Contains(a.text, "alive\r\n") })
	for _, size := range []wire.TerminalSize{{Cols: 0, Rows: 0}, {Cols: 1001, Rows: 10}, {Cols: 60000, Rows: 60000}} {
		again := f.attach(base+"/"+get[wire.Process](f.bundle, http.StatusCreated, "POST", base, `{"argv":["cat"],"pty":{"cols":80,"rows":24}}`).ID, "")
		again.send(wire.AttachResize, string(wire.AppendAttachSize(nil, size)[1:]))
		var why wire.AttachError
		kind, data := again.next()
		if kind != wire.AttachRefused || json.Unmarshal(data, &why) != nil || why.Code != "invalid" || !strings.Contains(why.Detail, "1000") {
			t.Errorf("%+v: %d %s", size, kind, data)
		}
		again.send(wire.AttachStdin, "on\n") // it goes on
		again.until(func() bool { return strings.Contains(again.text, "on\r\n") })
	}
}

// The caller's connection breaks at any moment: both directions go on where they were, also through another API server's connection.
func TestAttachGoesOnAfterABreak(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	base := "/v1/sandboxes/" + f.sandbox() + "/processes"
	made := get[wire.Process](f.bundle, http.StatusCreated, "POST", base, `{"command":"cat","stdin":true}`)
	var typed, text strings.Builder
	a := f.attach(base+"/"+made.ID, "?writer=me")
	for i := range 20 {
		line := fmt.Sprintf("line %d\n", i)
		typed.WriteString(line)
		a.send(wire.AttachStdin, line)
		if i%2 == 0 { // what was sent may have arrived or not
			a.until(func() bool { return strings.Contains(a.text, line) })
		}
		_ = a.conn.CloseNow()
		text.WriteString(a.text)
		next := f.attach(base+"/"+made.ID, fmt.Sprintf("?writer=me&written=%d&after=%d", a.taken, a.last))
		next.taken, next.last = a.taken, a.last
		a = next
		if rest := typed.String()[a.taken:]; rest != "" {
			a.send(wire.AttachStdin, rest)
		}
	}
	a.send(wire.AttachEnd, "")
	a.ends(1000, "")
	if text.WriteString(a.text); text.String() != typed.String() {
		t.Errorf("%q\nwant %q", text.String(), typed.String())
	}
}

// Workers end while keys are typed: nothing is lost or repeated, and the caller notices nothing.
func TestAttachGoesOnThroughAnotherWorker(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	base := "/v1/sandboxes/" + f.sandbox() + "/processes"
	made := get[wire.Process](f.bundle, http.StatusCreated, "POST", base, `{"command":"cat","stdin":true}`)
	a := f.attach(base+"/"+made.ID, "")
	var want strings.Builder
	for i := range 5 {
		for j := range 20 {
			line := fmt.Sprintf("line %d.%d\n", i, j)
			want.WriteString(line)
			a.send(wire.AttachStdin, line)
		}
		old := f.workers[len(f.workers)-1]
		f.worker(fmt.Sprintf("wrk_%d", i))
		old.Stop()
	}
	a.until(func() bool { return len(a.text) >= want.Len() && a.taken >= uint64(want.Len()) })
	if a.text != want.String() {
		t.Errorf("%q\nwant %q", a.text, want.String())
	}
}

func TestAttachIsRefused(t *testing.T) {
	t.Parallel()
	f := setupLive(t, withKeys, func(c *api.Config, _ *api.Deps) {
		c.Keys = append(c.Keys, api.KeyConfig{Tenant: "acme", SHA256: hash("reader"), Scopes: []string{"read"}})
	})
	mine := []string{"X-API-Key", key}
	box := f.sandbox(mine...)
	base := "/v1/sandboxes/" + box + "/processes"
	one := base + "/" + get[wire.Process](f.bundle, http.StatusCreated, "POST", base, `{"command":"sleep 100"}`, mine...).ID
	for name, c := range map[string]struct {
		one, query string
		headers    []string
		want       int
	}{
		"NoKey":       {one, "", nil, 401},
		"KeyInQuery":  {one, "?key=" + key, nil, 401},
		"Reader":      {one, "", []string{"X-API-Key", "reader"}, 403},
		"OtherTenant": {one, "", []string{"X-API-Key", otherKey}, 404},
		"NoProcess":   {base + "/" + farm.NewID(farm.ProcessPrefix), "", mine, 404},
		"NoID":        {base + "/x", "", mine, 404},
		"ForeignPage": {one, "", append(mine, "Origin", "https://evil.example"), 403},
		"NullOrigin":  {one, "", append(mine, "Origin", "null"), 403},
		"CrossSite":   {one, "", append(mine, "Sec-Fetch-Site", "cross-site"), 403},
		"TrustedPage": {one, "", append(mine, "Origin", "http://localhost:3000"), 403},
		"After":       {one, "?after=x", mine, 422},
		"Written":     {one, "?writer=a&written=-1", mine, 422},
		"NoWriter":    {one, "?written=1", mine, 422},
		"WriterChars": {one, "?writer=a/b", mine, 422},
		"Writer64":    {one, "?writer=" + strings.Repeat("w", 64), mine, 101},
		"Writer65":    {one, "?writer=" + strings.Repeat("w", 65), mine, 422},
		"OwnPage":     {one, "", append(mine, "Origin", f.web.URL), 101},
		"NoPage":      {one, "", mine, 101},
	} {
		_, answer, err := f.dial(c.one, c.query, c.headers...)
		if answer == nil || answer.StatusCode != c.want || (err == nil) != (c.want == 101) {
			t.Errorf("%s: %v, %v, want %d", name, answer, err, c.want)
		}
	}
	f.problem(farm.CodeInvalid, http.StatusUpgradeRequired, "GET", one+"/attach", nil, mine...)
}

// A farm without keys answers a GET of a foreign page, which cannot read the answer. It could use a WebSocket.
func TestAForeignPageDoesNotAttachToAFarmWithoutKeys(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	base := "/v1/sandboxes/" + f.sandbox() + "/processes"
	one := base + "/" + get[wire.Process](f.bundle, http.StatusCreated, "POST", base, `{"command":"cat","stdin":true}`).ID
	if _, answer, err := f.dial(one, "", "Origin", "https://evil.example"); err == nil || answer.StatusCode != http.StatusForbidden {
		t.Errorf("%v, %v", answer, err)
	}
}

func TestMessagesThatAreNone(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	base := "/v1/sandboxes/" + f.sandbox() + "/processes"
	one := base + "/" + get[wire.Process](f.bundle, http.StatusCreated, "POST", base, `{"command":"cat > /dev/null","stdin":true}`).ID
	long := func(n int) []byte { return append([]byte{byte(wire.AttachStdin)}, make([]byte, n)...) }
	for _, c := range map[string]struct {
		kind    websocket.MessageType
		message []byte
		want    int // 0: it is one
		why     string
	}{
		"Text":       {websocket.MessageText, []byte("\x01hello"), 1003, "binary"},
		"Empty":      {websocket.MessageBinary, nil, 4400, "empty"},
		"Unknown":    {websocket.MessageBinary, []byte{4}, 4400, "kind 4"},
		"Ours":       {websocket.MessageBinary, []byte{17, 0, 0, 0, 0, 0, 0, 0, 1}, 4400, "kind 17"},
		"LongEnd":    {websocket.MessageBinary, []byte{2, 0}, 4400, "no bytes"},
		"ShortSize":  {websocket.MessageBinary, []byte{3, 0, 80}, 4400, "4 bytes"},
		"Most-1":     {websocket.MessageBinary, long(wire.MaxAttachBytes - 1), 0, ""},
		"Most":       {websocket.MessageBinary, long(wire.MaxAttachBytes), 0, ""},
		"Most+1":     {websocket.MessageBinary, long(wire.MaxAttachBytes + 1), 1009, "at most 65536 bytes"},
		"64MiB":      {websocket.MessageBinary, long(64 << 20), 1009, "at most 65536 bytes"},
		"TextOf1MiB": {websocket.MessageText, make([]byte, 1<<20), 1003, "binary"},
	} {
		a := f.attach(one, "")
		sent := make(chan error, 1)
		go func() { sent <- a.conn.Write(t.Context(), c.kind, c.message) }()
		if c.want == 0 {
			a.until(func() bool { return int(a.taken) == len(c.message)-1 })
		} else {
			a.ends(c.want, c.why)
		}
		<-sent
		_ = a.conn.CloseNow()
	}
}

// A process without an input says so once, and its output goes on. The process runs nothing else, which the signal would end, too.
func TestInputThatIsRefused(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	base := "/v1/sandboxes/" + f.sandbox() + "/processes"
	one := base + "/" + get[wire.Process](f.bundle, http.StatusCreated, "POST", base, `{"command":"trap 'echo got it; exit' USR1; echo up; while :; do :; done"}`).ID
	a := f.attach(one, "")
	a.until(func() bool { return a.text == "up\n" })
	for range 3 {
		a.send(wire.AttachStdin, "x")
	}
	a.send(wire.AttachResize, "\x00\x50\x00\x18")
	for _, want := range []string{"no open input", "no terminal"} {
		if kind, data := a.next(); kind != wire.AttachRefused || !strings.Contains(string(data), `"conflict"`) || !strings.Contains(string(data), want) {
			t.Errorf("%d %s", kind, data)
		}
	}
	get[wire.Process](f.bundle, http.StatusOK, "POST", one+"/signal", `{"signal":"SIGUSR1"}`)
	a.ends(1000, "")
	if a.text != "up\ngot it\n" {
		t.Errorf("%q", a.text)
	}
	gap := f.attach(base+"/"+get[wire.Process](f.bundle, http.StatusCreated, "POST", base, `{"command":"cat","stdin":true}`).ID, "?writer=w&written=5")
	gap.send(wire.AttachStdin, "x")
	if kind, data := gap.next(); kind != wire.AttachRefused || !strings.Contains(string(data), "cannot continue at 5") {
		t.Errorf("%d %s", kind, data)
	}
}

// A caller that takes nothing is let go after stall_timeout: its connection is closed while it still sends.
func TestACallerThatNeverReads(t *testing.T) {
	t.Parallel()
	f := setupLive(t, func(c *api.Config, _ *api.Deps) { c.StallTimeout = time.Second })
	base := "/v1/sandboxes/" + f.sandbox() + "/processes"
	one := base + "/" + get[wire.Process](f.bundle, http.StatusCreated, "POST", base, `{"command":"yes 'a long line of output that fills what buffers there are'"}`).ID
	a := f.attach(one, "")
	ctx, done := context.WithTimeout(t.Context(), time.Minute)
	defer done()
	for ; ; time.Sleep(50 * time.Millisecond) {
		if err := a.conn.Write(ctx, websocket.MessageBinary, []byte{byte(wire.AttachStdin)}); err != nil {
			break
		}
	}
	if ctx.Err() != nil {
		t.Error("a caller that never reads is still attached after a minute")
	}
}

func TestARevokedKeyEndsItsAttachment(t *testing.T) {
	t.Parallel()
	f := setupLive(t, withScopes, func(c *api.Config, _ *api.Deps) { c.Heartbeat = time.Hour })
	made := f.newKey(wire.KeyRequest{Tenant: "blue"}, "admin")
	base := "/v1/sandboxes/" + f.sandbox(bearer(made.Secret)...) + "/processes"
	one := base + "/" + get[wire.Process](f.bundle, http.StatusCreated, "POST", base, `{"command":"cat","stdin":true}`, bearer(made.Secret)...).ID
	a := f.attach(one, "", bearer(made.Secret)...)
	a.send(wire.AttachStdin, "x")
	a.until(func() bool { return a.text == "x" })
	f.do("DELETE", "/v1/keys/"+made.Key.ID, nil, bearer("admin")...)
	a.ends(4401, "revoked")
}

func TestAnAttachmentCountsAsAConnection(t *testing.T) {
	t.Parallel()
	f := setupLive(t, withScopes)
	base := "/v1/sandboxes/" + f.sandbox(bearer("run")...) + "/processes"
	one := base + "/" + get[wire.Process](f.bundle, http.StatusCreated, "POST", base, `{"command":"cat","stdin":true}`, bearer("run")...).ID
	get[wire.Tenant](f.bundle, http.StatusOK, "PUT", "/v1/tenants/acme", `{"max_connections": 1}`, bearer("admin")...)
	var a *attached
	for deadline := time.Now().Add(time.Minute); a == nil; time.Sleep(20 * time.Millisecond) { // until the server knows of the quota
		conn, _, err := f.dial(one, "", bearer("run")...)
		if err != nil {
			continue
		}
		if answer, _ := f.do("GET", one, nil, bearer("run")...); answer.StatusCode == http.StatusTooManyRequests {
			a = &attached{t: t, conn: conn}
		} else if _ = conn.CloseNow(); time.Now().After(deadline) {
			t.Fatal("an attachment does not count")
		}
	}
	_ = a.conn.Close(websocket.StatusNormalClosure, "")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if answer, _ := f.do("GET", one, nil, bearer("run")...); answer.StatusCode == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("an attachment that has ended counts")
		}
	}
}

// The audit has an attachment when it begins, and never what is typed.
func TestTheAuditNamesAttachments(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	base := "/v1/sandboxes/" + f.sandbox() + "/processes"
	made := get[wire.Process](f.bundle, http.StatusCreated, "POST", base, `{"command":"cat","stdin":true}`)
	a := f.attach(base+"/"+made.ID, "")
	a.send(wire.AttachStdin, "secret text\n")
	a.until(func() bool { return strings.Contains(a.text, "secret text") })
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		entries, _, err := f.store.Audit(t.Context(), "", store.TimeRange{}, store.Page{Limit: 10})
		testbed.Must(t, err)
		if slices.ContainsFunc(entries, func(e farm.AuditEntry) bool { // that of the start may be newer: it is written after its answer
			return e.Route == "GET /v1/sandboxes/:id/processes/:process/attach" && e.Status == 101 && e.Subject == made.ID
		}) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", entries)
		}
	}
	if strings.Contains(f.log.String(), "secret text") {
		t.Error("the log has what was typed")
	}
}

// A server that stops tells its callers to come back, and returns when they have been told.
func TestAServerThatStopsEndsAttachments(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	base := "/v1/sandboxes/" + f.sandbox() + "/processes"
	one := base + "/" + get[wire.Process](f.bundle, http.StatusCreated, "POST", base, `{"command":"cat","stdin":true}`).ID
	a := f.attach(one, "")
	stopped, done := context.WithCancel(t.Context())
	go func() { f.server.Stop(); done() }()
	a.ends(4503, "stops")
	<-stopped.Done()
}
