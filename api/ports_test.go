package api_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// guest is a server that listens where the agent of a liveFarm reaches it, as one of the sandbox does.
func guest(t *testing.T, h http.HandlerFunc) (port string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	testbed.Must(t, err)
	return u.Port()
}

// closedPort is a port where nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	testbed.Must(t, err)
	return port
}

func TestRequestsToAPort(t *testing.T) {
	t.Parallel()
	f := setupLive(t, withKeys)
	mine := []string{"Authorization", "Bearer " + key}
	var got *http.Request
	var body []byte
	port := guest(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Clone(context.Background())
		body, _ = io.ReadAll(r.Body)
		w.Header().Set("X-App", "yes")
		w.Header().Set("Cache-Control", "max-age=60")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "hello")
	})
	box := f.sandbox(mine...)
	base := "/v1/sandboxes/" + box + "/ports/" + port
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		sent := ""
		if method != "GET" && method != "OPTIONS" {
			sent = "some text"
		}
		answer, text := f.do(method, base+"/a%2Fb//c;d/..?x=1;y&z=%zz", sent, append(mine, "X-Own", "1", "Origin", f.web.URL, "Referer", f.web.URL+base+"/page?q")...)
		if answer.StatusCode != http.StatusTeapot || string(text) != "hello" || answer.Header.Get("X-App") != "yes" {
			t.Fatalf("%s: %s %q %v", method, answer.Status, text, answer.Header)
		}
		if got.Method != method || got.RequestURI != "/a%2Fb//c;d/..?x=1;y&z=%zz" || string(body) != sent || got.Header.Get("X-Own") != "1" || got.Host != "localhost:"+port {
			t.Errorf("%s: the server got %s %s %q, host %s", method, got.Method, got.RequestURI, body, got.Host)
		}
		for name, want := range map[string]string{
			"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": strings.TrimPrefix(f.web.URL, "http://"), "X-Forwarded-Proto": "http", "X-Forwarded-Prefix": base,
			"Origin": "http://localhost:" + port, "Referer": "http://localhost:" + port + "/page?q", "Authorization": "", "X-Api-Key": "",
		} {
			testbed.Diff(t, fmt.Sprintf("%s: %s", method, name), want, got.Header.Get(name))
		}
		if values := answer.Header.Values("Cache-Control"); len(values) != 1 || values[0] != "max-age=60" {
			t.Errorf("%s: Cache-Control %q", method, values)
		}
		if csp := answer.Header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "sandbox ") || strings.Contains(csp, "allow-same-origin") || strings.Contains(csp, "allow-top-navigation") {
			t.Errorf("%s: a page would run on the farm's origin: %q", method, csp)
		}
	}
	if answer, _ := f.do("GET", base+"?a=b", nil, mine...); answer.StatusCode != http.StatusPermanentRedirect || answer.Header.Get("Location") != base+"/?a=b" {
		t.Errorf("without a slash: %s to %q", answer.Status, answer.Header.Get("Location"))
	}
	if answer, text := f.do("HEAD", base+"/", nil, mine...); answer.StatusCode != http.StatusTeapot || len(text) != 0 {
		t.Errorf("HEAD: %s %q", answer.Status, text)
	}
	f.problem(farm.CodeNotFound, http.StatusNotFound, "GET", base+"/", nil, "Authorization", "Bearer "+otherKey)
	f.problem(farm.CodeUnauthorized, http.StatusUnauthorized, "GET", base+"/", nil)
}

func TestPortsThatCannotBeReached(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	box := f.sandbox()
	for _, port := range []string{"0", "65536", "-1", "080", "http", "1e3", "@x", "%2Ftmp%2Fx.sock", "127.0.0.1:80"} {
		if answer, text := f.do("GET", "/v1/sandboxes/"+box+"/ports/"+port+"/", nil); answer.StatusCode/100 != 4 || !strings.HasPrefix(answer.Header.Get("Content-Type"), "application/problem+json") {
			t.Errorf("%s: %s %s", port, answer.Status, text)
		}
	}
	f.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "GET", "/v1/sandboxes/"+box+"/ports/65536/", nil)
	f.problem(farm.CodeNotFound, http.StatusNotFound, "GET", "/v1/sandboxes/"+farm.NewID(farm.SandboxPrefix)+"/ports/80/", nil)
	closed := closedPort(t)
	path := "/v1/sandboxes/" + box + "/ports/" + closed + "/"
	if p := f.problem(farm.CodeUnavailable, http.StatusBadGateway, "GET", path, nil); !strings.Contains(p.Detail, "Nothing listens on port "+closed) {
		t.Errorf("%+v", p)
	}
	answer, text := f.do("GET", path, nil, "Accept", "text/html,*/*;q=0.8")
	if answer.StatusCode != http.StatusBadGateway || !strings.Contains(string(text), "Nothing listens on port "+closed) || !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/html") || answer.Header.Get("Refresh") == "" {
		t.Errorf("%s %v %s", answer.Status, answer.Header, text)
	}
	if answer, text = f.do("GET", "/v1/sandboxes/<b>/ports/80/", nil, "Accept", "text/html"); strings.Contains(string(text), "<b>") || answer.StatusCode != http.StatusNotFound {
		t.Errorf("%s %s", answer.Status, text)
	}
	odd := strconv.Itoa(agenttest.Serve(t, func(conn io.ReadWriter) { _, _ = io.WriteString(conn, "220 not HTTP\r\n") }))
	if p := f.problem(farm.CodeUnavailable, http.StatusBadGateway, "GET", "/v1/sandboxes/"+box+"/ports/"+odd+"/", nil); !strings.Contains(p.Detail, "did not answer in HTTP") {
		t.Errorf("%+v", p)
	}
}

// Bodies of any length pass in pieces, both ways.
func TestBodiesThroughAPortAreStreamed(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	port := guest(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		buf := make([]byte, 100)
		for {
			n, err := r.Body.Read(buf)
			_, _ = w.Write(bytes.ToUpper(buf[:n]))
			_ = http.NewResponseController(w).Flush()
			if err != nil {
				return
			}
		}
	})
	from, to := io.Pipe()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.web.URL+"/v1/sandboxes/"+f.sandbox()+"/ports/"+port+"/", from)
	testbed.Must(t, err)
	answer, err := http.DefaultClient.Do(request)
	testbed.Must(t, err)
	defer func() { _ = answer.Body.Close() }()
	r := bufio.NewReader(answer.Body)
	for i := range 3 { // each piece comes back before the next one is sent
		_, err := fmt.Fprintf(to, "piece %d\n", i)
		testbed.Must(t, err)
		if row, err := r.ReadString('\n'); err != nil || row != fmt.Sprintf("PIECE %d\n", i) {
			t.Fatalf("%q, %v", row, err)
		}
	}
	go func() {
		_, _ = to.Write(bytes.Repeat([]byte("x"), 10<<20))
		_ = to.Close()
	}()
	if n, err := io.Copy(io.Discard, r); n != 10<<20 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// upgrade asks a server for another protocol and returns the connection.
func (f *liveFarm) upgrade(path string, headers ...string) (*http.Response, io.ReadWriteCloser) {
	f.t.Helper()
	request, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, f.web.URL+path, nil)
	testbed.Must(f.t, err)
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", "echo")
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(request)
	testbed.Must(f.t, err)
	f.t.Cleanup(func() { _ = answer.Body.Close() })
	conn, _ := answer.Body.(io.ReadWriteCloser)
	return answer, conn
}

func upgrading(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "echo" {
		http.Error(w, "no upgrade", http.StatusBadRequest)
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	_ = rw.Flush()
	_, _ = io.Copy(conn, rw)
}

// A WebSocket passes, and ends when the farm stops.
func TestUpgradesThroughAPort(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	answer, conn := f.upgrade("/v1/sandboxes/" + f.sandbox() + "/ports/" + guest(t, upgrading) + "/ws")
	if answer.StatusCode != http.StatusSwitchingProtocols || conn == nil {
		t.Fatal(answer.Status)
	}
	_, err := io.WriteString(conn, "both ways")
	testbed.Must(t, err)
	got := make([]byte, 9)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "both ways" {
		t.Errorf("%q, %v", got, err)
	}
	f.server.Stop()
	if _, err := conn.Read(got); err == nil {
		t.Error("the connection outlives the server")
	}
}

// Trailers pass in neither direction: they could hold what headers must not.
func TestTrailersStayInTheirPort(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	var got http.Header
	port := guest(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		got = r.Trailer
		w.Header().Set("Trailer", "Set-Cookie")
		_, _ = io.WriteString(w, "text")
		w.Header().Set("Set-Cookie", "sandfarm_session=evil")
		w.Header().Set(http.TrailerPrefix+"Clear-Site-Data", "*")
	})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.web.URL+"/v1/sandboxes/"+f.sandbox()+"/ports/"+port+"/", io.NopCloser(strings.NewReader("body")))
	testbed.Must(t, err)
	request.Trailer = http.Header{"X-Api-Key": {"secret"}}
	answer, err := http.DefaultClient.Do(request)
	testbed.Must(t, err)
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil || string(text) != "text" || len(answer.Trailer) > 0 || len(got) > 0 {
		t.Errorf("%q (error %v), trailers %v there and %v here", text, err, got, answer.Trailer)
	}
}

// What the code of a sandbox answers must not act on the farm's origin beyond the port's own path.
func TestAnswersOfAPortStayThere(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	port := guest(t, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		for _, name := range []string{"Alt-Svc", "Clear-Site-Data", "Strict-Transport-Security", "NEL", "Report-To", "Service-Worker-Allowed", "WWW-Authenticate", "Proxy-Authenticate", "Speculation-Rules", "Secure-Session-Registration", "Sec-Session-Registration", "X-Accel-Redirect", "X-Sendfile", "X-LiteSpeed-Location", "Referrer-Policy"} {
			h.Set(name, "bad")
		}
		h.Set("Content-Security-Policy", "default-src *")
		h.Set("X-Request-Id", "forged")
		h.Add("Set-Cookie", "a=1; Path=/; Domain=example.com; HttpOnly")
		h.Add("Set-Cookie", "b=2; Path=/app")
		h.Add("Set-Cookie", "__Host-sandfarm_session=evil; Path=/; Secure")
		h.Add("Set-Cookie", "__Host-x=1; Path=/; Secure")
		h.Add("Set-Cookie", "SandFarm=evil")
		h.Add("Set-Cookie", "bad name=1")
		h.Set("Location", r.URL.Query().Get("to"))
		h.Set("X-Cookie", strings.Join(r.Header.Values("Cookie"), "|"))
		w.WriteHeader(http.StatusFound)
	})
	base := "/v1/sandboxes/" + f.sandbox() + "/ports/" + port
	cookies := []string{"Cookie", "theme=dark; sandfarm_session=secret; __Host-Sandfarm-Link=secret; x=y; sandfarm"}
	answer, _ := f.do("GET", base+"/?to=/login?next=/a%2523b", nil, cookies...)
	for _, name := range []string{"Alt-Svc", "Clear-Site-Data", "Strict-Transport-Security", "Nel", "Report-To", "Service-Worker-Allowed", "Www-Authenticate", "Proxy-Authenticate", "Speculation-Rules", "Secure-Session-Registration", "Sec-Session-Registration", "X-Accel-Redirect", "X-Sendfile", "X-Litespeed-Location"} {
		if got := answer.Header.Values(name); len(got) > 0 {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := answer.Header.Values("Referrer-Policy"); len(got) != 1 || got[0] != "no-referrer" {
		t.Errorf("Referrer-Policy: %q", got)
	}
	if got := answer.Header.Values("X-Request-Id"); len(got) != 1 || got[0] == "forged" {
		t.Errorf("X-Request-Id: %q", got)
	}
	if got := answer.Header.Values("Content-Security-Policy"); len(got) != 2 || !strings.HasPrefix(got[1], "sandbox ") {
		t.Errorf("Content-Security-Policy: %q", got)
	}
	want := []string{"a=1; Path=" + base + "/; HttpOnly", "b=2; Path=" + base + "/app"}
	if got := answer.Header.Values("Set-Cookie"); strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("cookies %q, want %q", got, want)
	}
	testbed.Diff(t, "the server got the cookies", "theme=dark; x=y", answer.Header.Get("X-Cookie"))
	for to, want := range map[string]string{
		"/login": base + "/login", "/": base + "/", "relative/x": "relative/x", "?q": "?q", "//evil.example/x": "//evil.example/x", "https://example.com/x": "https://example.com/x",
		"http://localhost:" + port + "/x?a=b#c": base + "/x?a=b#c", "http://127.0.0.1:" + port: base + "/", f.web.URL + "/x": base + "/x", base + "/x": base + "/x",
		"http://localhost:1/x": "http://localhost:1/x", "javascript:alert(1)": "javascript:alert(1)", "/a%2Fb": base + "/a%2Fb", "/" + "/" + "/x": "///x",
	} {
		answer, _ := f.do("GET", base+"/?to="+url.QueryEscape(to), nil)
		testbed.Diff(t, fmt.Sprintf("Location %q", to), want, answer.Header.Get("Location"))
	}
	answer, _ = f.do("GET", base+"/?to=/login", nil, "Sandfarm-Rewrite", "off")
	testbed.Diff(t, "Location and Set-Cookie", "/login a=1; Path=/; HttpOnly", answer.Header.Get("Location")+" "+answer.Header.Get("Set-Cookie"))
}

// raw sends bytes to the farm and returns what comes back until the connection ends.
func (f *liveFarm) raw(text string) string {
	f.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.web.URL, "http://"))
	testbed.Must(f.t, err)
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, text)
	testbed.Must(f.t, err)
	all, _ := io.ReadAll(conn)
	return string(all)
}

// No request becomes two, and no header of the connection or the farm passes.
func TestSmugglingThroughAPort(t *testing.T) {
	t.Parallel()
	f := setupLive(t, func(c *api.Config, _ *api.Deps) { withKeys(c, nil) })
	seen := make(chan *http.Request, 100)
	port := guest(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		seen <- r.Clone(context.Background())
	})
	mine := []string{"Authorization", "Bearer " + key}
	line := "/v1/sandboxes/" + f.sandbox(mine...) + "/ports/" + port + "/"
	head := " HTTP/1.1\r\nHost: x\r\nX-API-Key: " + key + "\r\nConnection: close\r\n"
	smuggled := "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
	for name, request := range map[string]string{
		"Both lengths":       "POST " + line + head + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
		"Two lengths":        "POST " + line + head + "Content-Length: 0\r\nContent-Length: 40\r\n\r\n" + smuggled,
		"Odd encoding":       "POST " + line + head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + smuggled,
		"Encoding by a tab":  "POST " + line + head + "Transfer-Encoding:\tchunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n" + smuggled,
		"Space before colon": "POST " + line + head + "Content-Length : 40\r\n\r\n" + smuggled,
		"Folded header":      "GET " + line + head + "X-A: b\r\n Transfer-Encoding: chunked\r\n\r\n",
		"Line in the path":   "GET " + line + "%0d%0aX-Evil:%201" + head + "\r\n",
		"Length by GET":      "GET " + line + head + "Content-Length: 5\r\n\r\n12345" + smuggled,
		"Connection":         "GET " + line + " HTTP/1.1\r\nHost: x\r\nX-API-Key: " + key + "\r\nConnection: close, X-Forwarded-For, X-Keep, Host\r\nX-Keep: 1\r\nX_API_Key: " + key + "\r\nProxy-Authorization: Bearer " + key + "\r\nTE: trailers\r\nKeep-Alive: 1\r\nProxy-Connection: keep-alive\r\n\r\n",
		"Absolute form":      "GET http://elsewhere.example" + line + head + "\r\n",
	} {
		answer := f.raw(request)
		if strings.Count(answer, "HTTP/1.1 ") != 1 {
			t.Errorf("%s: %q", name, answer)
		}
		for more := true; more; {
			select {
			case r := <-seen:
				if strings.Contains(r.URL.Path, "smuggled") || r.Header.Get("X-Evil") != "" || r.Host != "localhost:"+port {
					t.Errorf("%s: the server got %s %s of host %s with %v", name, r.Method, r.RequestURI, r.Host, r.Header)
				}
				for header, values := range r.Header {
					if strings.Contains(strings.Join(values, ""), key) || header == "X-Keep" || header == "Keep-Alive" || header == "Proxy-Connection" {
						t.Errorf("%s: the server got %s: %q", name, header, values)
					}
				}
			default:
				more = false
			}
		}
	}
}

// A page from a sandbox, whose origin is opaque, cannot use a farm without keys: what it may send it may not read, and the rest is refused.
func TestPagesOfAPortCannotUseTheFarm(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	box := f.sandbox()
	port := guest(t, upgrading)
	for _, origin := range []string{"null", "https://evil.example", "http://localhost:3000"} {
		page := []string{"Origin", origin, "Sec-Fetch-Site", "cross-site"}
		f.problem(farm.CodeUnauthorized, http.StatusForbidden, "POST", "/v1/sandboxes/"+box+"/commands", `{"command":"true"}`, page...)
		f.problem(farm.CodeUnauthorized, http.StatusForbidden, "DELETE", "/v1/sandboxes/"+box, nil, page...)
		f.problem(farm.CodeUnauthorized, http.StatusForbidden, "POST", "/v1/sandboxes/"+box+"/ports/"+port+"/", nil, page...)
		if answer, _ := f.do("GET", "/v1/sandboxes", nil, page...); answer.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s may read the farm's answers: %v", origin, answer.Header)
		}
		if answer, _ := f.upgrade("/v1/sandboxes/"+box+"/ports/"+port+"/", page...); answer.StatusCode != http.StatusForbidden {
			t.Errorf("%s opens a WebSocket: %s", origin, answer.Status)
		}
	}
	if answer, _ := f.upgrade("/v1/sandboxes/"+box+"/ports/"+port+"/", "Origin", f.web.URL); answer.StatusCode != http.StatusSwitchingProtocols {
		t.Errorf("the farm's own page: %s", answer.Status)
	}
}

// local returns both ends of a connection on this machine.
func local(t *testing.T) (ours, theirs *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	defer func() { _ = l.Close() }()
	dialled, err := net.Dial("tcp", l.Addr().String())
	testbed.Must(t, err)
	accepted, err := l.Accept()
	testbed.Must(t, err)
	t.Cleanup(func() { _, _ = dialled.Close(), accepted.Close() })
	return dialled.(*net.TCPConn), accepted.(*net.TCPConn)
}

// Any protocol passes, and each direction ends by itself.
func TestForwardedConnections(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	box := f.sandbox()
	c, err := client.New(f.web.URL)
	testbed.Must(t, err)
	port := agenttest.Serve(t, func(conn io.ReadWriter) {
		_, _ = io.WriteString(conn, "220 hello\r\n")
		_, _ = io.Copy(conn, conn)
		_, _ = io.WriteString(conn, "over")
	})
	ours, theirs := local(t)
	over := make(chan error, 1)
	go func() { over <- c.Forward(t.Context(), box, port, theirs) }()
	sent := bytes.Repeat([]byte("0123456789"), 1<<18)
	go func() {
		_, _ = ours.Write(sent)
		_ = ours.CloseWrite()
	}()
	got, err := io.ReadAll(ours)
	if err != nil || string(got) != "220 hello\r\n"+string(sent)+"over" {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := <-over; err != nil {
		t.Error(err)
	}
	_, theirs = local(t)
	closed, err := strconv.Atoi(closedPort(t))
	testbed.Must(t, err)
	if err := c.Forward(t.Context(), box, closed, theirs); err == nil || !strings.Contains(err.Error(), "Nothing listens on port") {
		t.Errorf("nothing listens: %v", err)
	}
	target := "/v1/sandboxes/" + box + "/tcp/" + strconv.Itoa(port)
	f.problem(farm.CodeInvalid, http.StatusUpgradeRequired, "GET", target, nil)
	f.problem(farm.CodeUnauthorized, http.StatusForbidden, "GET", target, nil, "Origin", "https://evil.example")
}

// A caller who is gone without a word holds neither the sandbox's server nor one of its connections for ever. One who is silent and there stays.
func TestForwardedConnectionsWhoseCallerIsGone(t *testing.T) {
	t.Parallel()
	f := setupLive(t, func(c *api.Config, _ *api.Deps) { c.Heartbeat, c.StallTimeout = time.Second, 5*time.Second })
	box := f.sandbox()
	ended := make(chan string, 2)
	port := agenttest.Serve(t, func(conn io.ReadWriter) {
		name := make([]byte, 4)
		_, _ = io.ReadFull(conn, name)
		_, _ = io.Copy(io.Discard, conn)
		ended <- string(name)
	})
	dial := func(name string, answers bool, pings chan<- struct{}) *websocket.Conn {
		ws, _, err := websocket.Dial(t.Context(), f.web.URL+"/v1/sandboxes/"+box+"/tcp/"+strconv.Itoa(port), &websocket.DialOptions{ //nolint:bodyclose // there is none
			OnPingReceived: func(context.Context, []byte) bool {
				if pings != nil {
					pings <- struct{}{}
				}
				return answers
			},
		})
		testbed.Must(t, err)
		t.Cleanup(func() { _ = ws.CloseNow() })
		testbed.Must(t, ws.Write(t.Context(), websocket.MessageBinary, []byte(name)))
		go func() { _, _, _ = ws.Read(t.Context()) }()
		return ws
	}
	pings := make(chan struct{}, 1000)
	there := dial("here", true, pings)
	dial("gone", false, nil)
	if got := <-ended; got != "gone" {
		t.Fatalf("the connection of %q has ended", got)
	}
	for range 8 {
		<-pings
	}
	testbed.Must(t, there.Close(websocket.StatusNormalClosure, ""))
	testbed.Diff(t, "the connection that has ended", "here", <-ended)
}
