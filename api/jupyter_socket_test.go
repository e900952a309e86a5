package api_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/sandfarm/sandfarm/api/jupyter"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestJupyterEndsConnectionsWithAReason(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := b.kernel()
	for name, c := range map[string]struct {
		kind websocket.MessageType
		data []byte
		want websocket.StatusCode
	}{
		"NoJSON":         {websocket.MessageText, []byte("{"), websocket.StatusInvalidFramePayloadData},
		"Offsets":        {websocket.MessageBinary, []byte{0, 0, 0, 9, 1}, websocket.StatusInvalidFramePayloadData},
		"UnknownChannel": {websocket.MessageText, []byte(`{"header":{"msg_id":"1","msg_type":"x"},"channel":"iopub"}`), websocket.StatusInvalidFramePayloadData},
		"TooLong":        {websocket.MessageText, make([]byte, jupyter.MaxMessageBytes+1), websocket.StatusMessageTooBig},
		"TooManyValues":  {websocket.MessageText, []byte(`{"header":{"msg_id":"1","msg_type":"x"},"content":{"x":[1` + strings.Repeat(",1", farm.MaxBodyValues) + `]}}`), websocket.StatusMessageTooBig},
	} {
		f := b.frontend(k.ID, "")
		f.write(c.kind, c.data)
		t.Log(name)
		f.closed(c.want)
	}
	second := b.frontend(k.ID, "")
	second.until(second.send("shell", "kernel_info_request", map[string]any{}))
	if answer, _ := b.do("DELETE", "/jupyter/api/kernels/"+k.ID, nil); answer.StatusCode != http.StatusNoContent {
		t.Errorf("delete: %d", answer.StatusCode)
	}
	if m := second.read(); m.Type != "status" || m.Content["execution_state"] != "dead" {
		t.Errorf("the end of the kernel is told as %+v", m)
	}
	second.closed(websocket.StatusNormalClosure)
	other := b.frontend(b.kernel().ID, "")
	b.server.Stop()
	other.closed(websocket.StatusServiceRestart)
}

func TestJupyterSpeaksTheFramingThatIsAskedFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := b.kernel()
	f := b.frontend(k.ID, "", "other", "v1.kernel.websocket.jupyter.org")
	if got := f.conn.Subprotocol(); got != "v1.kernel.websocket.jupyter.org" {
		t.Fatalf("subprotocol %q", got)
	}
	f.send("shell", "kernel_info_request", map[string]any{})
	if kind, data, err := f.conn.Read(t.Context()); err != nil || kind != websocket.MessageBinary || !strings.Contains(string(data), "iopub") {
		t.Errorf("%v %q: %v", kind, data, err)
	}
	if got := b.frontend(k.ID, "", "other").conn.Subprotocol(); got != "" {
		t.Errorf("subprotocol %q", got)
	}
}

// Any page can open a WebSocket to any server, and no browser asks first.
func TestJupyterIsNotForForeignPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := b.kernel()
	at := strings.Replace(b.web.URL, "http", "ws", 1) + "/jupyter/api/kernels/" + k.ID + "/channels"
	own, err := url.Parse(b.web.URL)
	if err != nil {
		t.Fatal(err)
	}
	for origin, ok := range map[string]bool{"": true, "http://" + own.Host: true, "https://evil.example": false, "null": false} {
		header := http.Header{}
		if origin != "" {
			header.Set("Origin", origin)
		}
		conn, _, err := websocket.Dial(t.Context(), at, &websocket.DialOptions{HTTPHeader: header})
		if (err == nil) != ok {
			t.Errorf("origin %q: %v", origin, err)
		}
		if conn != nil {
			_ = conn.CloseNow()
		}
	}
}
