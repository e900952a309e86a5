//go:build faults

package faulttest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandfarm/sandfarm/internal/faulttest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// notebook is a client of Jupyter: what it shows of its cells, by their ids.
type notebook struct {
	url    string
	output map[string]string
	ended  map[string][]string // replies
	conn   *websocket.Conn
}

// The API is killed while one cell runs and another waits behind it. They go on, and the notebook, when it connects again, shows all of their
// output once and one end of each.
func TestNotebookOutlivesTheAPI(t *testing.T) {
	t.Parallel()
	f := newFarm(t, faulttest.Config{Workers: 1, Schedulers: 1})
	answer, err := http.Post(f.URL()+"/jupyter/api/kernels", "application/json", strings.NewReader(`{}`))
	testbed.Must(t, err)
	var kernel struct{ ID string }
	err = json.NewDecoder(answer.Body).Decode(&kernel)
	_ = answer.Body.Close()
	if err != nil || answer.StatusCode != http.StatusCreated {
		t.Fatalf("start a kernel: %s, %v", answer.Status, err)
	}
	n := notebook{url: f.URL() + "/jupyter/api/kernels/" + kernel.ID + "/channels?session_id=s", output: map[string]string{}, ended: map[string][]string{}}
	n.connect(t)
	n.run(t, "first", "runs = 1\nimport time\nfor i in range(40):\n    print('part', i, flush=True)\n    time.sleep(0.1)")
	n.run(t, "second", "runs += 1\nprint('runs', runs)")
	for strings.Count(n.output["first"], "\n") < 3 {
		testbed.Must(t, n.read(t))
	}
	f.Kill(faulttest.API)
	for n.read(t) == nil {
	}
	f.Start(faulttest.API)
	f.AwaitReady()
	n.connect(t)
	for len(n.ended["second"]) == 0 {
		testbed.Must(t, n.read(t))
	}
	var parts strings.Builder
	for i := range 40 {
		fmt.Fprintln(&parts, "part", i)
	}
	for cell, want := range map[string]string{"first": parts.String(), "second": "runs 2\n"} {
		if n.output[cell] != want || !slices.Equal(n.ended[cell], []string{"ok"}) {
			t.Errorf("cell %s shows %q with the replies %v, want %q", cell, n.output[cell], n.ended[cell], want)
		}
	}
}

func (n *notebook) connect(t *testing.T) {
	t.Helper()
	var err error
	if n.conn, _, err = websocket.Dial(t.Context(), n.url, nil); err != nil { //nolint:bodyclose // Dial has read it
		t.Fatal(err)
	}
	n.conn.SetReadLimit(1 << 20)
	t.Cleanup(func() { _ = n.conn.CloseNow() })
}

// run sends a cell.
func (n *notebook) run(t *testing.T, id, code string) {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"channel": "shell", "parent_header": map[string]any{}, "metadata": map[string]any{}, "buffers": []any{},
		"header":  map[string]any{"msg_id": id, "msg_type": "execute_request", "session": "s", "username": "u", "version": "5.4", "date": "2026-01-01T00:00:00Z"},
		"content": map[string]any{"code": code, "silent": false, "store_history": true, "user_expressions": map[string]any{}, "allow_stdin": false},
	})
	if err == nil {
		err = n.conn.Write(t.Context(), websocket.MessageText, text)
	}
	testbed.Must(t, err)
}

// read does what a notebook does with the next message.
func (n *notebook) read(t *testing.T) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, text, err := n.conn.Read(ctx)
	if err != nil {
		return err
	}
	var m struct {
		Header struct {
			Type string `json:"msg_type"`
		} `json:"header"`
		Parent struct {
			ID string `json:"msg_id"`
		} `json:"parent_header"`
		Content struct{ Text, Status string } `json:"content"`
	}
	testbed.Must(t, json.Unmarshal(text, &m))
	switch m.Header.Type {
	case "stream":
		n.output[m.Parent.ID] += m.Content.Text
	case "clear_output":
		n.output[m.Parent.ID] = ""
	case "execute_reply":
		n.ended[m.Parent.ID] = append(n.ended[m.Parent.ID], m.Content.Status)
	}
	return nil
}
