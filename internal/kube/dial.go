package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	dialTimeout  = 30 * time.Second // covers the start of the process: usually 50 to 80 ms, seconds during a burst
	pingEvery    = 20 * time.Second // keeps proxies from closing an idle stream, and finds one that is dead
	execProtocol = "v5.channel.k8s.io"
	writeMax     = 32 << 10 // bytes of one message
	stderrMax    = 4 << 10  // of stderr is kept for the error
)

// The channels of an exec, the first byte of each message.
const (
	channelStdin  = 0
	channelStdout = 1
	channelStderr = 2
	channelStatus = 3
)

// DialSocket runs a command in a Pod that connects to a socket of its network namespace, and returns its stdin and stdout as one stream: in the container
// of the sandbox, or, as user linkUser, in the one beside it that has this user. Both have the agent's programs.
func (e *Engine) DialSocket(ctx context.Context, id, _ string, command []string, user string) (io.ReadWriteCloser, error) {
	container := containerSandbox
	switch uid, _, _ := strings.Cut(user, ":"); uid {
	case "":
	case strconv.Itoa(linkUser):
		container = containerLink
	default:
		return nil, farm.Invalidf("a Pod has no container of the user %s", user)
	}
	var s *stream
	err := e.call(ctx, dialTimeout, "exec in container", func(ctx context.Context) error {
		if err := e.same(ctx, id); err != nil {
			return err
		}
		var err error
		if s, err = e.open(ctx, id, container, command); err != nil {
			return err
		}
		if err := e.same(ctx, id); err != nil { // an exec names no uid, and the Pod may have been replaced meanwhile
			return errors.Join(err, s.Close())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	go s.ping() //nolint:contextcheck // it lives as long as the stream
	return s, nil
}

// same makes sure that the Pod of an id has the name. It asks the API server only if the watch does not know.
func (e *Engine) same(ctx context.Context, id string) error {
	pod, uid := split(id)
	if p := e.pods.get(pod); p != nil && (uid == "" || p.UID == uid) {
		return nil
	}
	_, err := e.find(ctx, id)
	return err
}

// open starts an exec.
func (e *Engine) open(ctx context.Context, id, container string, command []string) (*stream, error) {
	pod, _ := split(id)
	r := e.rest.Get().Namespace(e.cfg.Namespace).Resource("pods").Name(pod).SubResource("exec").
		Param("container", container).Param("stdin", "true").Param("stdout", "true").Param("stderr", "true")
	for _, argument := range command {
		r = r.Param("command", argument)
	}
	conn, answer, err := websocket.Dial(ctx, r.URL().String(), &websocket.DialOptions{HTTPClient: e.exec, Subprotocols: []string{execProtocol}}) //nolint:bodyclose // refusal closes it
	if err != nil {
		return nil, refusal(answer, err)
	}
	if conn.Subprotocol() != execProtocol {
		return nil, errors.Join(farm.Conflictf("the cluster does not speak %s: it is older than Kubernetes 1.31", execProtocol), conn.CloseNow())
	}
	conn.SetReadLimit(-1) // a message is read in parts
	s := &stream{conn: conn, out: make([]byte, 1, 1+writeMax)}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return s, nil
}

// refusal is the error of the API server behind one of the WebSocket.
func refusal(answer *http.Response, err error) error {
	if answer == nil || answer.Body == nil || answer.StatusCode < http.StatusBadRequest {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	var status metav1.Status
	if json.Unmarshal(text, &status) != nil || status.Code == 0 {
		status = metav1.Status{Code: int32(answer.StatusCode), Message: string(text)} //nolint:gosec // a status is small
		switch answer.StatusCode {
		case http.StatusNotFound:
			status.Reason = metav1.StatusReasonNotFound
		case http.StatusUnauthorized:
			status.Reason = metav1.StatusReasonUnauthorized
		case http.StatusForbidden:
			status.Reason = metav1.StatusReasonForbidden
		}
	}
	return apierrors.FromObject(&status)
}

// stream is an exec's connection. One reader and one writer may use it at once; Close may be called from anywhere.
type stream struct {
	conn   *websocket.Conn
	ctx    context.Context //nolint:containedctx // the life of the stream, which Close ends
	cancel context.CancelFunc

	message io.Reader // of stdout that is being read; nil: none
	end     error     // what ended the stream

	mu     sync.Mutex // of writers
	out    []byte     // a message: the channel, and bytes
	stderr []byte     // of the reader
}

// Read reads stdout. When the command has ended it returns io.EOF, or an error with its stderr.
func (s *stream) Read(p []byte) (int, error) {
	for s.end == nil {
		if s.message != nil {
			n, err := s.message.Read(p)
			if err == nil || n > 0 {
				return n, nil
			}
			s.message = nil
			if !errors.Is(err, io.EOF) {
				s.end = s.ended(err)
				break
			}
		}
		s.end = s.next()
	}
	return 0, s.end
}

// next reads the beginning of a message, and all of it unless it is stdout. An error ends the stream.
func (s *stream) next() error {
	_, r, err := s.conn.Reader(s.ctx)
	if err != nil {
		return s.ended(err)
	}
	var channel [1]byte
	if _, err := io.ReadFull(r, channel[:]); err != nil {
		return s.ended(err)
	}
	switch channel[0] {
	case channelStdout:
		s.message = r
		return nil
	case channelStderr:
		text, err := io.ReadAll(io.LimitReader(r, int64(stderrMax-len(s.stderr))))
		s.stderr = append(s.stderr, text...)
		if err == nil {
			_, err = io.Copy(io.Discard, r)
		}
		return err
	case channelStatus:
		var status metav1.Status
		if err := json.NewDecoder(io.LimitReader(r, 64<<10)).Decode(&status); err != nil {
			return s.ended(err)
		}
		if status.Status == metav1.StatusSuccess {
			return io.EOF
		}
		return s.ended(farm.Errorf(farm.CodeUnavailable, "the command in the Pod ended: %s", shorten(status.Message)))
	default:
		return fmt.Errorf("read exec stream: message of unknown channel %d", channel[0])
	}
}

// ended adds stderr to the error that ended the stream.
func (s *stream) ended(err error) error {
	if len(s.stderr) == 0 {
		return err
	}
	return fmt.Errorf("exec ended (stderr: %q): %w", s.stderr, err)
}

// Write writes to stdin.
func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	written := 0
	for written < len(p) {
		part := p[written:min(len(p), written+writeMax)]
		s.out = append(s.out[:0], channelStdin)
		s.out = append(s.out, part...)
		if err := s.conn.Write(s.ctx, websocket.MessageBinary, s.out); err != nil {
			return written, err
		}
		written += len(part)
	}
	return written, nil
}

// ping pings the API server until the stream ends, and ends it if no answer comes. The answer is read by Read.
func (s *stream) ping() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(s.ctx, pingEvery)
		err := s.conn.Ping(ctx)
		cancel()
		if err != nil {
			_ = s.Close()
			return
		}
	}
}

// Close ends the stream immediately, and unblocks a waiting Read or Write.
func (s *stream) Close() error {
	s.cancel()
	_ = s.conn.CloseNow() // it may be closed already
	return nil
}
