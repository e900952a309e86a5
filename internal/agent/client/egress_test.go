package client_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

const (
	maxStreams = agent.MaxIndexStreams
	maxUnread  = 64 << 10
	maxWindow  = 256 << 10 // of a stream to a proxy
)

// hostileIndex returns a client that serves an index, and an agent's session that the test controls.
func hostileIndex(t *testing.T, index http.HandlerFunc) (*client.Client, *yamux.Session) {
	t.Helper()
	return hostileAgent(t, client.Options{Egress: index})
}

// hostileAgent returns a client, and an agent's session that the test controls.
func hostileAgent(t *testing.T, o client.Options) (*client.Client, *yamux.Session) {
	t.Helper()
	local, remote := net.Pipe()
	c, err := client.New(local, o)
	testbed.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	config := yamux.DefaultConfig()
	config.LogOutput = nil
	config.Logger = discard{}
	session, err := yamux.Server(remote, config)
	testbed.Must(t, err)
	t.Cleanup(func() { _ = session.Close() })
	return c, session
}

// open opens a stream and sends on it.
func open(t *testing.T, session *yamux.Session, text string) *yamux.Stream {
	t.Helper()
	stream, err := session.OpenStream()
	testbed.Must(t, err)
	_, err = io.WriteString(stream, text)
	testbed.Must(t, err)
	return stream
}

// hang is when a test gives up: nothing here takes as long.
const hang = time.Minute

// awaitEnd waits until the session has ended.
func awaitEnd(t *testing.T, c *client.Client, why string) {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(hang):
		t.Fatalf("the session did not end: %s", why)
	}
}

// lives checks that the session answers.
func lives(t *testing.T, session *yamux.Session, what string) {
	t.Helper()
	_, err := session.Ping()
	testbed.Check(t, err == nil, "the session has ended: %s: %v", what, err)
}

const request = "GET /pypi/simple/x/ HTTP/1.1\r\nHost: somewhere\r\n\r\n"

func TestTheIndexAnswersStreamsOfTheAgent(t *testing.T) {
	t.Parallel()
	_, session := hostileIndex(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.RemoteAddr+" "+r.Host+" "+r.URL.Path)
	})
	for range 3 * maxStreams { // sequential streams are not limited
		stream := open(t, session, request)
		raw, err := io.ReadAll(stream)
		if err != nil || !strings.HasSuffix(string(raw), "\r\n\r\nsandbox somewhere /pypi/simple/x/") || !strings.Contains(string(raw), "Connection: close") {
			t.Fatalf("answer %q, %v", raw, err)
		}
		_ = stream.Close()
	}
	lives(t, session, "after requests one by one")
}

func TestMoreStreamsThanAnAgentOpensEndTheSession(t *testing.T) {
	t.Parallel()
	limitOfStreams(t, maxStreams, request, hostileIndex)
}

// limitOfStreams opens one stream less than the limit, as many, and one more. Of those within it each is served: none is left that could end
// the session.
func limitOfStreams(t *testing.T, limit int, text string, hostile func(*testing.T, http.HandlerFunc) (*client.Client, *yamux.Session)) {
	t.Helper()
	for _, n := range []int{limit - 1, limit, limit + 1} {
		began, release := make(chan struct{}, n), make(chan struct{})
		defer close(release)
		c, session := hostile(t, func(http.ResponseWriter, *http.Request) {
			began <- struct{}{}
			<-release
		})
		for range n {
			open(t, session, text)
		}
		if n > limit {
			awaitEnd(t, c, fmt.Sprint(n, " streams"))
			continue
		}
		for range n {
			select {
			case <-began:
			case <-c.Done():
				t.Fatalf("%d streams end the session", n)
			}
		}
		lives(t, session, fmt.Sprint(n, " streams"))
	}
}

// A stream that the agent does not end counts, even after its answer.
func TestStreamsThatTheAgentKeepsHalfOpenCount(t *testing.T) {
	t.Parallel()
	c, session := hostileIndex(t, func(http.ResponseWriter, *http.Request) {})
	for range maxStreams + 1 {
		stream, err := session.OpenStream()
		if err != nil {
			break
		}
		if _, err := io.WriteString(stream, request); err != nil {
			break
		}
		_, _ = io.ReadAll(stream) // ends with the session, if not before
	}
	awaitEnd(t, c, "half open streams")
}

func TestWhatTheAgentSendsAheadIsBounded(t *testing.T) {
	t.Parallel()
	for _, more := range []int{maxUnread - 1, maxUnread, maxUnread + 1} {
		began, arrived, read := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		c, session := hostileIndex(t, func(w http.ResponseWriter, _ *http.Request) {
			conn, buffered, err := http.NewResponseController(w).Hijack() // no more data is read
			if err != nil {
				t.Error(err)
				return
			}
			close(began)
			<-arrived
			_, err = io.CopyN(io.Discard, buffered, int64(more))
			_ = conn.Close()
			read <- err
		})
		stream := open(t, session, request)
		<-began
		_, _ = io.WriteString(stream, strings.Repeat("x", more))
		if more > maxUnread {
			awaitEnd(t, c, fmt.Sprint(more, " bytes ahead"))
			close(arrived)
			continue
		}
		lives(t, session, fmt.Sprint(more, " bytes ahead")) // the answer comes after what was sent ahead has arrived
		close(arrived)
		err := <-read
		testbed.Check(t, err == nil, "read %d bytes that were sent ahead: %v", more, err)
		lives(t, session, fmt.Sprint("after a read of ", more, " bytes"))
	}
}

func TestWhatTheAgentSendsAfterTheAnswerIsBounded(t *testing.T) {
	t.Parallel()
	c, session := hostileIndex(t, func(http.ResponseWriter, *http.Request) {})
	stream := open(t, session, request)
	_, err := io.ReadAll(stream)
	testbed.Must(t, err)
	_, err = io.WriteString(stream, strings.Repeat("x", maxUnread/2))
	testbed.Must(t, err)
	if raw, err := io.ReadAll(open(t, session, request)); err != nil || !strings.HasPrefix(string(raw), "HTTP/1.1 200 ") {
		t.Fatalf("after a small amount the next request gets %.60q, %v", raw, err)
	}
	go func() {
		for {
			if _, err := io.WriteString(stream, strings.Repeat("x", maxUnread)); err != nil {
				return
			}
		}
	}()
	awaitEnd(t, c, "it sends on after the answer")
}

func TestHeadersOfARequestAreBounded(t *testing.T) {
	t.Parallel()
	_, session := hostileIndex(t, func(http.ResponseWriter, *http.Request) { t.Error("the request was served") })
	stream := open(t, session, "GET / HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("y", 17<<10)+"\r\n\r\n")
	_ = stream.SetReadDeadline(time.Now().Add(hang))
	raw, _ := io.ReadAll(stream)
	testbed.Check(t, strings.HasPrefix(string(raw), "HTTP/1.1 431 "), "answer %.60q", raw)
	lives(t, session, "after a header that is too long")
}

// A header of many short lines takes far more memory than its bytes. It ends its stream before it is complete, in every session.
func TestLinesOfARequestAreBounded(t *testing.T) {
	t.Parallel()
	for proxy, begin := range map[bool]string{false: strings.TrimSuffix(request, "\r\n"), true: strings.TrimSuffix(connect, "\r\n")} {
		_, session := hostileAgent(t, client.Options{
			Proxy: proxy, Egress: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the request was served") }),
		})
		stream := open(t, session, begin+strings.Repeat("a:\n", 3000)) // and no end of the header
		_ = stream.SetReadDeadline(time.Now().Add(hang))
		raw, err := io.ReadAll(stream)
		testbed.Check(t, err == nil && strings.HasPrefix(string(raw), "HTTP/1.1 400 "), "answer %.60q, %v", raw, err)
		lives(t, session, "after a header of too many lines")
	}
}

// A stream is charged before anything of it is read, and until it has ended. One that is not admitted has an answer, and the session goes on.
func TestStreamsAreAdmittedUnread(t *testing.T) {
	t.Parallel()
	free, released := make(chan struct{}, 1), make(chan struct{}, 1)
	free <- struct{}{}
	_, session := hostileAgent(t, client.Options{
		Proxy: true, Egress: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "in") }),
		Admit: func() (func(), bool) {
			select {
			case <-free:
				return func() { released <- struct{}{} }, true
			default:
				return nil, false
			}
		},
	})
	first := open(t, session, request[:20])
	for range 2 {
		refused := open(t, session, request[:20]) // its header does not end either
		_ = refused.SetReadDeadline(time.Now().Add(hang))
		if raw, err := io.ReadAll(refused); err != nil || !strings.HasPrefix(string(raw), "HTTP/1.1 503 ") {
			t.Errorf("a stream that is not admitted is answered %.60q, %v", raw, err)
		}
		_ = refused.Close()
	}
	_, err := io.WriteString(first, request[20:])
	testbed.Must(t, err)
	raw, err := io.ReadAll(first)
	testbed.Check(t, err == nil && strings.HasSuffix(string(raw), "\r\n\r\nin"), "the stream that is admitted is answered %.60q, %v", raw, err)
	select {
	case <-released:
		t.Error("a stream that is half open is no longer charged")
	default:
	}
	_ = first.Close()
	select {
	case <-released:
	case <-time.After(hang):
		t.Error("a stream that has ended is still charged")
	}
}

func TestARequestEndsWithItsStream(t *testing.T) {
	t.Parallel()
	canceled := make(chan struct{})
	_, session := hostileIndex(t, func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(canceled)
	})
	stream := open(t, session, request)
	_ = stream.Close() // the client in the sandbox has disconnected
	select {
	case <-canceled:
	case <-time.After(hang):
		t.Fatal("the request did not end")
	}
}

// Regression: an agent that ended its direction after each request, and read no answer, could have any number of requests in progress.
func TestAnswersThatTheAgentDoesNotTakeCount(t *testing.T) {
	t.Parallel()
	var limit, now atomic.Int64
	c, session := hostileIndex(t, func(w http.ResponseWriter, _ *http.Request) {
		limit.Store(max(limit.Load(), now.Add(1)))
		defer now.Add(-1)
		for range 1 << 10 {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	})
	for range 4 * maxStreams {
		stream, err := session.OpenStream()
		if err != nil {
			break
		}
		if _, err := io.WriteString(stream, request); err != nil {
			break
		}
		_ = stream.Close()
	}
	awaitEnd(t, c, "answers that are not taken")
	testbed.Check(t, limit.Load() <= maxStreams+1, "%d requests were in progress at once", limit.Load())
}

// A handler can bound how long an answer may take, however slowly it is read.
func TestAnAnswerHasADeadline(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	_, session := hostileIndex(t, func(w http.ResponseWriter, _ *http.Request) {
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			t.Error(err)
		}
		for {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				ended <- err
				return
			}
		}
	})
	open(t, session, request) // and reads nothing
	select {
	case <-ended:
	case <-time.After(hang):
		t.Fatal("the answer did not end")
	}
}

// hostileProxied is hostileIndex with a handler that is a proxy as well.
func hostileProxied(t *testing.T, proxy http.HandlerFunc) (*client.Client, *yamux.Session) {
	t.Helper()
	return hostileAgent(t, client.Options{Egress: proxy, Proxy: true})
}

const connect = "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n"

func TestMoreProxiedStreamsThanAnAgentOpensEndTheSession(t *testing.T) {
	t.Parallel()
	limitOfStreams(t, agent.MaxProxyStreams, connect, hostileProxied)
}

// What a proxied connection sends ahead of its reader stays in the sandbox, but for a window.
func TestWhatAProxiedStreamSendsAheadWaits(t *testing.T) {
	t.Parallel()
	began, release := make(chan struct{}), make(chan struct{})
	_, session := hostileProxied(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		close(began)
		<-release
		_ = conn.Close()
	})
	stream := open(t, session, connect)
	<-began
	_, err := io.WriteString(stream, strings.Repeat("x", maxUnread))
	testbed.Must(t, err) // so much goes ahead
	const limit = maxWindow + maxUnread
	for sent := maxUnread; ; { // more may, until the stream takes no more
		_ = stream.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		n, err := io.WriteString(stream, strings.Repeat("x", 4<<10))
		if sent += n; sent > limit {
			t.Fatalf("%d bytes are on their way, want at most %d", sent, limit)
		}
		if err != nil {
			break
		}
	}
	close(release) // what is in flight when the connection ends is discarded
	_ = stream.SetWriteDeadline(time.Now().Add(hang))
	_, err = io.WriteString(stream, strings.Repeat("x", 4<<20))
	testbed.Check(t, err == nil, "after the end: %v", err)
	lives(t, session, "after the end of the stream")
}
