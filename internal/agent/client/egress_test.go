package client_test

import (
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
)

const (
	mostStreams = agent.MaxIndexStreams
	mostUnread  = 64 << 10
	mostWindow  = 256 << 10 // of a stream to a proxy
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	config := yamux.DefaultConfig()
	config.LogOutput = nil
	config.Logger = discard{}
	session, err := yamux.Server(remote, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return c, session
}

// open opens a stream and sends on it.
func open(t *testing.T, session *yamux.Session, text string) *yamux.Stream {
	t.Helper()
	stream, err := session.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(stream, text); err != nil {
		t.Fatal(err)
	}
	return stream
}

// ends reports whether the session ends within a time.
func ends(c *client.Client, within time.Duration) bool {
	select {
	case <-c.Done():
		return true
	case <-time.After(within):
		return false
	}
}

const request = "GET /pypi/simple/x/ HTTP/1.1\r\nHost: somewhere\r\n\r\n"

func TestTheIndexAnswersStreamsOfTheAgent(t *testing.T) {
	t.Parallel()
	c, session := hostileIndex(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.RemoteAddr+" "+r.Host+" "+r.URL.Path)
	})
	for range 3 * mostStreams { // sequential streams are not limited
		stream := open(t, session, request)
		raw, err := io.ReadAll(stream)
		if err != nil || !strings.HasSuffix(string(raw), "\r\n\r\nsandbox somewhere /pypi/simple/x/") || !strings.Contains(string(raw), "Connection: close") {
			t.Fatalf("answer %q, %v", raw, err)
		}
		_ = stream.Close()
	}
	if ends(c, 0) {
		t.Fatal("the session has ended")
	}
}

func TestMoreStreamsThanAnAgentOpensEndTheSession(t *testing.T) {
	t.Parallel()
	for _, n := range []int{mostStreams - 1, mostStreams, mostStreams + 1} {
		release := make(chan struct{})
		defer close(release)
		c, session := hostileIndex(t, func(http.ResponseWriter, *http.Request) { <-release })
		for range n {
			open(t, session, request)
		}
		within := 1500 * time.Millisecond
		if n > mostStreams {
			within = 20 * time.Second
		}
		if over := n > mostStreams; ends(c, within) != over {
			t.Errorf("%d streams: the session ends: %v", n, !over)
		}
	}
}

// A stream that the agent does not end counts, even after its answer.
func TestStreamsThatTheAgentKeepsHalfOpenCount(t *testing.T) {
	t.Parallel()
	c, session := hostileIndex(t, func(http.ResponseWriter, *http.Request) {})
	for range mostStreams + 1 {
		stream, err := session.OpenStream()
		if err != nil {
			break
		}
		if _, err := io.WriteString(stream, request); err != nil {
			break
		}
		_ = stream.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.ReadAll(stream)
	}
	if !ends(c, 20*time.Second) {
		t.Error("the session did not end")
	}
}

func TestWhatTheAgentSendsAheadIsBounded(t *testing.T) {
	t.Parallel()
	for _, more := range []int{mostUnread - 1, mostUnread, mostUnread + 1} {
		began, release := make(chan struct{}), make(chan struct{})
		defer close(release)
		c, session := hostileIndex(t, func(w http.ResponseWriter, _ *http.Request) {
			if _, _, err := http.NewResponseController(w).Hijack(); err != nil { // no more data is read
				t.Error(err)
			}
			close(began)
			<-release
		})
		stream := open(t, session, request)
		<-began
		within := 300 * time.Millisecond
		if more > mostUnread {
			within = 20 * time.Second
		}
		_, _ = io.WriteString(stream, strings.Repeat("x", more))
		if over := more > mostUnread; ends(c, within) != over {
			t.Errorf("%d bytes ahead: the session ends: %v", more, !over)
		}
	}
}

func TestWhatTheAgentSendsAfterTheAnswerIsBounded(t *testing.T) {
	t.Parallel()
	c, session := hostileIndex(t, func(http.ResponseWriter, *http.Request) {})
	stream := open(t, session, request)
	if _, err := io.ReadAll(stream); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(stream, strings.Repeat("x", mostUnread/2)); err != nil {
		t.Fatal(err)
	}
	if ends(c, 300*time.Millisecond) {
		t.Fatal("a small amount ends the session")
	}
	go func() {
		for {
			if _, err := io.WriteString(stream, strings.Repeat("x", mostUnread)); err != nil {
				return
			}
		}
	}()
	if !ends(c, 20*time.Second) {
		t.Error("the session did not end")
	}
}

func TestHeadersOfARequestAreBounded(t *testing.T) {
	t.Parallel()
	c, session := hostileIndex(t, func(http.ResponseWriter, *http.Request) { t.Error("the request was served") })
	stream := open(t, session, "GET / HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("y", 17<<10)+"\r\n\r\n")
	_ = stream.SetReadDeadline(time.Now().Add(10 * time.Second))
	if raw, _ := io.ReadAll(stream); !strings.HasPrefix(string(raw), "HTTP/1.1 431 ") {
		t.Errorf("answer %.60q", raw)
	}
	if ends(c, 0) {
		t.Error("the session has ended")
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
	case <-time.After(20 * time.Second):
		t.Fatal("the request did not end")
	}
}

// Regression: an agent that ended its direction after each request, and read no answer, could have any number of requests in progress.
func TestAnswersThatTheAgentDoesNotTakeCount(t *testing.T) {
	t.Parallel()
	var most, now atomic.Int64
	c, session := hostileIndex(t, func(w http.ResponseWriter, _ *http.Request) {
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		for range 1 << 10 {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	})
	for range 4 * mostStreams {
		stream, err := session.OpenStream()
		if err != nil {
			break
		}
		if _, err := io.WriteString(stream, request); err != nil {
			break
		}
		_ = stream.Close()
	}
	if !ends(c, 20*time.Second) {
		t.Error("the session did not end")
	}
	if most.Load() > mostStreams+1 {
		t.Errorf("%d requests were in progress at once", most.Load())
	}
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
	case <-time.After(20 * time.Second):
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
	for _, n := range []int{agent.MaxProxyStreams - 1, agent.MaxProxyStreams, agent.MaxProxyStreams + 1} {
		release := make(chan struct{})
		defer close(release)
		c, session := hostileProxied(t, func(http.ResponseWriter, *http.Request) { <-release })
		for range n {
			open(t, session, connect)
		}
		within := 1500 * time.Millisecond
		if n > agent.MaxProxyStreams {
			within = 20 * time.Second
		}
		if over := n > agent.MaxProxyStreams; ends(c, within) != over {
			t.Errorf("%d streams: the session ends: %v", n, !over)
		}
	}
}

// What a proxied connection sends ahead of its reader stays in the sandbox, but for a window.
func TestWhatAProxiedStreamSendsAheadWaits(t *testing.T) {
	t.Parallel()
	began, release := make(chan struct{}), make(chan struct{})
	c, session := hostileProxied(t, func(w http.ResponseWriter, _ *http.Request) {
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
	sent := 0
	for {
		_ = stream.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		n, err := io.WriteString(stream, strings.Repeat("x", 4<<10))
		sent += n
		if err != nil {
			break
		}
		if sent > 8<<20 {
			break
		}
	}
	if most := mostWindow + mostUnread; sent > most || sent < mostUnread {
		t.Errorf("%d bytes are on their way, want at most %d", sent, most)
	}
	close(release) // what is in flight when the connection ends is discarded
	_ = stream.SetWriteDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(stream, strings.Repeat("x", 4<<20)); err != nil {
		t.Errorf("after the end: %v", err)
	}
	if ends(c, 0) {
		t.Error("the session has ended")
	}
}
