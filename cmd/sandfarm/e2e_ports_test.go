//go:build integration

package main_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// siteSource is a web server and a WebSocket that echoes, without a library. It prints its port when it listens.
const siteSource = `
import base64, hashlib, http.server

class Site(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("Upgrade") == "websocket":
            return self.echo()
        body = f"{self.path} for {self.headers['X-Forwarded-Host']}, key {self.headers['Authorization']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        size = int(self.headers["Content-Length"])
        digest = hashlib.sha256()
        while size:
            part = self.rfile.read(min(size, 65536))
            digest.update(part)
            size -= len(part)
        body = digest.hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def echo(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        while True:
            kind, size = self.rfile.read(2)
            mask, text = self.rfile.read(4), self.rfile.read(size & 127)
            if kind & 15 == 8:
                break
            text = bytes(b ^ mask[i % 4] for i, b in enumerate(text))
            self.wfile.write(bytes([kind, len(text)]) + text)
        self.close_connection = True

    def log_message(self, *args):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
print(server.server_port, flush=True)
server.serve_forever()
`

// requested makes a request of the farm, by whatever host the URL names it, and returns the status and the body of the answer.
func (f *farmProcess) requested(t *testing.T, method, url string, body io.Reader) (status int, text string) {
	t.Helper()
	way := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, strings.TrimPrefix(f.url, "http://"))
	}}
	defer way.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	testbed.Must(t, err)
	if body != nil {
		r.ContentLength = bodyBytes
	}
	answer, err := (&http.Client{Transport: way}).Do(r)
	testbed.Must(t, err)
	defer func() { _ = answer.Body.Close() }()
	raw, err := io.ReadAll(answer.Body)
	testbed.Must(t, err)
	return answer.StatusCode, string(raw)
}

// bodyBytes is the size of the bodies that are sent.
const bodyBytes = 1 << 20

// A web server of a real sandbox is reached through the API, a worker and the engine: by the caller's key, by a WebSocket, and by a link.
func aSiteInASandbox(t *testing.T, f *farmProcess, box string) {
	_, err := f.StartProcess(t.Context(), box, wire.ProcessRequest{Command: new("pwd"), Cwd: "/root"})
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != http.StatusUnprocessableEntity || !strings.Contains(e.Error(), "may not be entered") {
		t.Errorf("a directory that is closed: %v", err)
	}
	p, err := f.StartProcess(t.Context(), box, wire.ProcessRequest{Argv: []string{"python3", "-c", siteSource}})
	testbed.Must(t, err)
	port := ""
	for e, err := range f.ProcessEvents(t.Context(), box, p.ID, "") {
		testbed.Must(t, err)
		if _, text, ok := strings.Cut(string(e.Data), `"text":"`); e.Name == "stdout" && ok {
			port, _, _ = strings.Cut(text, `\n`)
			break
		}
		t.Fatalf("the server: %s %s", e.Name, e.Data)
	}
	number, err := strconv.Atoi(port)
	testbed.Must(t, err)
	at := "/v1/sandboxes/" + box + "/ports/" + port
	if status, body := f.requested(t, http.MethodGet, f.url+at+"/a?b=c", nil); status != http.StatusOK || body != "/a?b=c for "+strings.TrimPrefix(f.url, "http://")+", key None" {
		t.Errorf("GET: %d %q", status, body)
	}
	const digest = "30e14955ebf1352266dc2ff8067e68104607e750abb9d3b36582b8af909fcb58" // of 1 MiB of zeros
	if status, body := f.requested(t, http.MethodPost, f.url+at+"/", io.LimitReader(zeros{}, bodyBytes)); status != http.StatusOK || body != digest {
		t.Errorf("POST: %d %q", status, body)
	}
	ws, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(f.url, "http")+at+"/ws", nil)
	testbed.Must(t, err)
	for _, text := range []string{"one", "two"} {
		testbed.Must(t, ws.Write(t.Context(), websocket.MessageText, []byte(text)))
		if kind, got, err := ws.Read(t.Context()); err != nil || kind != websocket.MessageText || string(got) != text {
			t.Errorf("WebSocket: %v, %q", err, got)
		}
	}
	_ = ws.CloseNow()
	list, err := f.Ports(t.Context(), box)
	testbed.Must(t, err)
	found := false
	for _, one := range list {
		found = found || one.Port == number && one.PID != nil && *one.PID == p.PID
	}
	if !found {
		t.Errorf("ports: %+v", list)
	}
	link, err := f.LinkPort(t.Context(), box, wire.PortLinkRequest{Port: number})
	testbed.Must(t, err)
	if status, body := f.requested(t, http.MethodGet, link.URL, nil); status != http.StatusOK || !strings.HasPrefix(body, "/") {
		t.Errorf("link %s: %d %q", link.URL, status, body)
	}
	_, err = f.EndProcess(t.Context(), box, p.ID)
	testbed.Must(t, err)
	if status, body := f.requested(t, http.MethodGet, f.url+at+"/", nil); status != http.StatusBadGateway {
		t.Errorf("after its end: %d %q", status, body)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
