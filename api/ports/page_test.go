package ports_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/ports"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestPagesEscapeTextAndTryAgain(t *testing.T) {
	t.Parallel()
	for status, again := range map[int]string{http.StatusBadGateway: "3", http.StatusServiceUnavailable: "3", http.StatusNotFound: ""} {
		w := httptest.NewRecorder()
		testbed.Must(t, ports.WritePage(w, status, `<script>"100%s"</script>`, `<b>`))
		body := w.Body.String()
		if w.Code != status || w.Header().Get("Refresh") != again || strings.Contains(body, "tries again every 3 seconds") != (again != "") {
			t.Errorf("%d, Refresh %q\n%s", w.Code, w.Header().Get("Refresh"), body)
		}
		if strings.Contains(body, "<script") || strings.Contains(body, "<b>") || !strings.Contains(body, "100%s") || strings.Contains(body, "%!") {
			t.Errorf("text is not escaped, or the page is not filled:\n%s", body)
		}
	}
}

// joined is the client of a connection that a Proxy passes on to a server in a sandbox, which has accepted the upgrade. over is closed when the Proxy has
// ended it.
func joined(t *testing.T, ctx context.Context, proxy *ports.Proxy, serve func(conn net.Conn)) (client net.Conn, over <-chan struct{}) { //nolint:revive // as in other helpers, t is first
	t.Helper()
	port := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		if _, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"); err == nil {
			serve(conn)
		}
	}))
	t.Cleanup(port.Close)
	ended := make(chan struct{})
	farm := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		dial := func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", port.Listener.Addr().String())
		}
		proxy.Serve(w, r.WithContext(ctx), ports.Target{Key: "one", Port: 1, Dial: dial}, ports.View{Path: "/", Answered: func() {}, Fail: func(err error) { t.Error(err) }})
	}))
	t.Cleanup(farm.Close)
	client, err := net.Dial("tcp", farm.Listener.Addr().String())
	testbed.Must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	_, err = io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	testbed.Must(t, err)
	return client, ended
}

// An upgraded connection whose client neither reads nor sends ends with its request, when the farm stops, and when the client has stalled.
func TestUpgradesWhoseClientDoesNotReadEnd(t *testing.T) {
	t.Parallel()
	for name, stall := range map[string]time.Duration{"WithTheRequest": time.Hour, "WithTheFarm": time.Hour, "Stalled": 100 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			full := make(chan struct{}) // nobody takes what the server in the sandbox sends
			closing := make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			proxy := ports.New(closing, stall)
			defer proxy.Close()
			_, over := joined(t, ctx, proxy, func(conn net.Conn) {
				for err := error(nil); err == nil; {
					_ = conn.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
					_, err = conn.Write(make([]byte, 1<<20))
				}
				close(full)
				_, _ = io.Copy(io.Discard, conn)
			})
			<-full
			switch name {
			case "WithTheRequest":
				cancel()
			case "WithTheFarm":
				close(closing)
			}
			select {
			case <-over:
			case <-time.After(10 * time.Second):
				t.Error("the connection is still open")
			}
		})
	}
}

// Each direction of an upgraded connection ends by itself.
func TestUpgradesEndInEachDirection(t *testing.T) {
	t.Parallel()
	proxy := ports.New(nil, time.Minute)
	defer proxy.Close()
	client, over := joined(t, t.Context(), proxy, func(conn net.Conn) {
		_, _ = io.WriteString(conn, "over")
		half, _ := conn.(*net.TCPConn)
		got, err := io.ReadAll(io.LimitReader(conn, 4))
		if err = errors.Join(err, half.CloseWrite()); err != nil || string(got) != "more" {
			t.Errorf("%q, %v", got, err)
		}
		if got, err = io.ReadAll(conn); err != nil || string(got) != "later" {
			t.Errorf("after its end: %q, %v", got, err)
		}
	})
	from := bufio.NewReader(client)
	answer, err := http.ReadResponse(from, nil) //nolint:bodyclose // an upgrade has none
	testbed.Must(t, err)
	_, err = io.WriteString(client, "more")
	testbed.Must(t, err)
	got, err := io.ReadAll(from)
	if answer.StatusCode != http.StatusSwitchingProtocols || err != nil || string(got) != "over" {
		t.Errorf("%s, %q, %v", answer.Status, got, err)
	}
	_, err = io.WriteString(client, "later")
	testbed.Must(t, err)
	half, _ := client.(*net.TCPConn)
	testbed.Must(t, half.CloseWrite())
	<-over
}
