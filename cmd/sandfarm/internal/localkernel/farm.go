package localkernel

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/sandfarm/sandfarm/internal/jupyterwire"
)

const (
	// startWait bounds the request that makes a kernel: the farm answers earlier, if need be with one that is still starting.
	startWait = 2 * time.Minute
	// requestWait bounds the other requests.
	requestWait = 45 * time.Second
	// maxAnswerBytes bounds an answer of the farm: a list of sessions.
	maxAnswerBytes = 8 << 20
	// maxMessageBytes bounds a message of the farm. It has a displayed value at most, and buffers of a widget.
	maxMessageBytes = 256 << 20
)

// errEnded says that the farm has no such kernel, or none any more.
var errEnded = errors.New("the kernel has ended")

// remote is the farm behind its address for clients of Jupyter.
type remote struct {
	base, key string
	http      *http.Client
}

// session is a session of the farm as far as this package reads it.
type session struct {
	ID     string `json:"id"`
	Path   string `json:"path"`
	Kernel struct {
		ID string `json:"id"`
	} `json:"kernel"`
}

func (r *remote) header() http.Header {
	h := http.Header{"User-Agent": {"sandfarm-kernel"}}
	if r.key != "" {
		h.Set("Authorization", "Bearer "+r.key)
	}
	return h
}

// call makes a request and decodes the answer. errEnded: there is no such kernel.
func (r *remote) call(ctx context.Context, wait time.Duration, method, path string, body, into any) error {
	ctx, done := context.WithTimeout(ctx, wait)
	defer done()
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, r.base+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header = r.header()
	req.Header.Set("Content-Type", "application/json")
	answer, err := r.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err = io.ReadAll(io.LimitReader(answer.Body, maxAnswerBytes))
	if err != nil {
		return err
	}
	if answer.StatusCode == http.StatusNotFound && method != http.MethodPost {
		return errEnded
	}
	if answer.StatusCode >= http.StatusBadRequest {
		var refusal struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(text, &refusal) // a page of a proxy has none
		return fmt.Errorf("the farm refuses: %s", cmp.Or(refusal.Message, answer.Status))
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s%s is no answer of a farm: %w", r.base, path, err)
	}
	return nil
}

// find looks for the session of a path; nil: there is none.
func (r *remote) find(ctx context.Context, path string) (*session, error) {
	var all []session
	if err := r.call(ctx, requestWait, http.MethodGet, "/api/sessions", nil, &all); err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Path == path {
			return &all[i], nil
		}
	}
	return nil, nil
}

// make makes a session with a kernel.
func (r *remote) make(ctx context.Context, path, name, spec string, env map[string]string) (session, error) {
	var out session
	err := r.call(ctx, startWait, http.MethodPost, "/api/sessions", map[string]any{
		"path": path, "name": name, "type": "kernel", "kernel": map[string]any{"name": spec, "env": env},
	}, &out)
	return out, err
}

func (r *remote) restart(ctx context.Context, kernel string) error {
	return r.call(ctx, requestWait, http.MethodPost, "/api/kernels/"+kernel+"/restart", nil, nil)
}

func (r *remote) remove(ctx context.Context, wait time.Duration, kernel string) error {
	return r.call(ctx, wait, http.MethodDelete, "/api/kernels/"+kernel, nil, nil)
}

// dial opens the WebSocket of a kernel.
func (r *remote) dial(ctx context.Context, kernel, as string) (*websocket.Conn, error) {
	ctx, done := context.WithTimeout(ctx, requestWait)
	defer done()
	at := "ws" + strings.TrimPrefix(r.base, "http") + "/api/kernels/" + kernel + "/channels?session_id=" + as
	conn, answer, err := websocket.Dial(ctx, at, &websocket.DialOptions{HTTPClient: r.http, HTTPHeader: r.header(), Subprotocols: []string{jupyterwire.Subprotocol}}) //nolint:bodyclose // Dial has read what there is
	if err != nil && answer != nil {
		switch answer.StatusCode {
		case http.StatusNotFound:
			return nil, errEnded
		case http.StatusUnauthorized, http.StatusForbidden:
			return nil, fatalError{fmt.Errorf("the farm does not take the API key: %s", answer.Status)}
		}
	}
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(maxMessageBytes)
	return conn, nil
}

// fatalError is an error that a retry cannot cure.
type fatalError struct{ error }

// Unwrap returns the error itself.
func (e fatalError) Unwrap() error { return e.error }
