package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// frontend is a client with a WebSocket.
type frontend struct {
	t      *testing.T
	conn   *websocket.Conn
	next   int
	leaves atomic.Bool // it has begun to close the connection
}

func (b *bundle) frontend(kernel, query string, protocols ...string) *frontend {
	b.t.Helper()
	ctx, done := context.WithTimeout(b.t.Context(), time.Minute)
	defer done()
	f := &frontend{t: b.t}
	// A browser that closes answers no pings. This client would try, fail, and reset the connection: then what it has sent can be lost.
	answers := func(context.Context, []byte) bool { return !f.leaves.Load() }
	var err error
	f.conn, _, err = websocket.Dial(ctx, strings.Replace(b.web.URL, "http", "ws", 1)+"/jupyter/api/kernels/"+kernel+"/channels"+query,
		&websocket.DialOptions{Subprotocols: protocols, OnPingReceived: answers})
	if err != nil {
		b.t.Fatal(err)
	}
	f.conn.SetReadLimit(-1)
	b.t.Cleanup(func() { _ = f.conn.CloseNow() })
	return f
}

// leave closes the connection as a browser does, without waiting for its end.
func (f *frontend) leave() {
	f.leaves.Store(true)
	go func() { _ = f.conn.Close(websocket.StatusGoingAway, "") }()
}

// send sends a message and returns its id.
func (f *frontend) send(channel, kind string, content any) string {
	f.t.Helper()
	f.next++
	id := fmt.Sprintf("m%d", f.next)
	text, err := json.Marshal(map[string]any{
		"header": map[string]any{"msg_id": id, "msg_type": kind, "session": "s", "username": "", "version": "5.3", "odd": true}, "channel": channel,
		"parent_header": map[string]any{"msg_id": "forged"}, "metadata": map[string]any{}, "content": content, "buffers": []any{},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.write(websocket.MessageText, text)
	return id
}

func (f *frontend) write(kind websocket.MessageType, data []byte) {
	f.t.Helper()
	if err := f.conn.Write(f.t.Context(), kind, data); err != nil {
		f.t.Fatal(err)
	}
}

// shownMessage is a message as a client shows it.
type shownMessage struct {
	Channel string
	Type    string `json:"msg_type"`
	Parent  struct {
		ID  string `json:"msg_id"`
		Odd bool
	} `json:"parent_header"`
	Content  map[string]any
	Metadata struct {
		Sandfarm struct{ Position int }
	}
}

// until reads the messages that belong to a message of the client, up to the state idle, and lists what they say.
func (f *frontend) until(id string) []string {
	f.t.Helper()
	var out []string
	for {
		m := f.read()
		if m.Parent.ID != id {
			continue
		}
		if !m.Parent.Odd {
			f.t.Errorf("the parent of %+v lacks what the client's header had", m)
		}
		line := m.Channel + " " + m.Type
		for _, field := range []string{"execution_state", "text", "status", "code", "wait"} {
			if v, ok := m.Content[field]; ok {
				line += fmt.Sprintf(" %v", v)
			}
		}
		if out = append(out, strings.TrimSpace(line)); line == "iopub status idle" {
			return out
		}
	}
}

func (f *frontend) read() shownMessage {
	f.t.Helper()
	ctx, done := context.WithTimeout(f.t.Context(), time.Minute)
	defer done()
	kind, data, err := f.conn.Read(ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	var m shownMessage
	if kind != websocket.MessageText || json.Unmarshal(data, &m) != nil {
		f.t.Fatalf("%v: %.100q", kind, data)
	}
	return m
}

// closed waits for the end of the connection.
func (f *frontend) closed(want websocket.StatusCode) {
	f.t.Helper()
	ctx, done := context.WithTimeout(f.t.Context(), time.Minute)
	defer done()
	for {
		if _, _, err := f.conn.Read(ctx); err != nil {
			if got := websocket.CloseStatus(err); got != want {
				f.t.Errorf("the connection ended with %d (%v), want %d", got, err, want)
			}
			return
		}
	}
}
