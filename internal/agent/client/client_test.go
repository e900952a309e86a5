package client_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// against returns a client that talks to a hostile agent.
func against(t *testing.T, hostile http.HandlerFunc) *client.Client {
	t.Helper()
	ours, theirs := net.Pipe()
	session, err := yamux.Server(theirs, nil)
	testbed.Must(t, err)
	srv := &http.Server{Handler: hostile} //nolint:gosec // a test's own
	go func() { _ = srv.Serve(session) }()
	c, err := client.New(ours, client.Options{})
	testbed.Must(t, err)
	t.Cleanup(func() {
		_ = c.Close()
		_ = srv.Close()
	})
	return c
}

func TestFramesAreChecked(t *testing.T) {
	t.Parallel()
	frame := func(seq uint64, kind agent.FrameType) []byte {
		return agent.AppendFrame(nil, agent.Frame{Seq: seq, Type: kind, Payload: []byte("x")})
	}
	huge := frame(1, agent.FrameStdout)
	huge[9] = 0xff
	for name, c := range map[string]struct {
		sent []byte
		code farm.Code
	}{
		"huge":    {huge, farm.CodeUnavailable},
		"type":    {frame(1, 99), farm.CodeUnavailable},
		"gap":     {append(frame(1, agent.FrameStdout), frame(3, agent.FrameStdout)...), farm.CodeInternal},
		"repeat":  {append(frame(1, agent.FrameStdout), frame(1, agent.FrameStdout)...), farm.CodeInternal},
		"start":   {frame(2, agent.FrameStdout), farm.CodeInternal},
		"cut":     {frame(1, agent.FrameStdout)[:10], farm.CodeUnavailable},
		"no end":  {frame(1, agent.FrameStdout), farm.CodeUnavailable},
		"nothing": {nil, farm.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cl := against(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(c.sent) })
			frames, err := cl.Frames(t.Context(), "job", 0)
			testbed.Must(t, err)
			defer func() { _ = frames.Close() }()
			for err == nil {
				_, err = frames.Next()
			}
			if errors.Is(err, io.EOF) && farm.CodeOf(err) == farm.CodeInternal || farm.CodeOf(err) != c.code {
				t.Errorf("error = %v (%s), want %s", err, farm.CodeOf(err), c.code)
			}
		})
	}
}

func TestErrorsAreOfTheContract(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]farm.Code{
		`{"code":"not_found","message":"no"}`:     farm.CodeNotFound,
		`{"code":"too_large","message":"no"}`:     farm.CodeTooLarge,
		`{"code":"unauthorized","message":"you"}`: farm.CodeInternal,
		`{"code":"made_up","message":"x"}`:        farm.CodeInternal,
		`<html>`:                                  farm.CodeInternal,
	} {
		cl := against(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusTeapot)
			_, _ = io.WriteString(w, body)
		})
		_, err := cl.Stat(t.Context(), "x")
		testbed.Check(t, farm.CodeOf(err) == want, "%s: %v (%s), want %s", body, err, farm.CodeOf(err), want)
	}
}

func TestABrokenStreamIsUnavailable(t *testing.T) {
	t.Parallel()
	cl := against(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	err := cl.Mkdir(t.Context(), "x")
	testbed.Check(t, farm.CodeOf(err) == farm.CodeUnavailable, "aborted: %v", err)
	testbed.Must(t, cl.Close())
	<-cl.Done()
	_, err = cl.Info(t.Context())
	testbed.Check(t, farm.CodeOf(err) == farm.CodeUnavailable, "closed: %v", err)
}

func TestAnEndlessAnswerIsCut(t *testing.T) {
	t.Parallel()
	cl := against(t, func(w http.ResponseWriter, _ *http.Request) {
		chunk := make([]byte, 1<<20)
		for {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	_, err := cl.Info(t.Context())
	testbed.Check(t, farm.CodeOf(err) == farm.CodeTooLarge, "error = %v", err)
}

// stdout reads frames to the end and returns the output in them.
func stdout(t *testing.T, frames *client.Frames) string {
	t.Helper()
	defer func() { _ = frames.Close() }()
	var text strings.Builder
	for {
		f, err := frames.Next()
		if errors.Is(err, io.EOF) {
			return text.String()
		}
		testbed.Must(t, err)
		if f.Type == agent.FrameStdout {
			text.Write(f.Payload)
		}
	}
}

func TestRunStartsOnceAndReadsFromAnyFrame(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	spec := agent.Spec{Kind: farm.KindCommand, Commands: []string{"echo x >>count; cat count"}, Timeout: time.Minute}
	id := agenttest.NewID()
	for _, from := range []uint64{0, 1, 2} {
		frames, err := a.Run(t.Context(), id, spec, from)
		testbed.Must(t, err)
		testbed.Diff(t, fmt.Sprintf("from %d", from), "x\n", stdout(t, frames))
		spec.Code = strings.Repeat("a long request of an execution that has started ", 1<<16) // 3 MB, more than a stream takes without a reader
	}
	testbed.Must(t, a.Ack(t.Context(), id, 2))
	_, err := a.Run(t.Context(), id, spec, 1)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeConflict, "frames that were acknowledged: %v", err)
	_, err = a.Run(t.Context(), agenttest.NewID(), agent.Spec{Kind: "dance"}, 1)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid, "a spec that cannot be executed: %v", err)
}

func TestRunDoesNotWaitForOutput(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	id := agenttest.NewID()
	frames, err := a.Run(t.Context(), id, agent.Spec{Kind: farm.KindCommand, Commands: []string{"sleep 1000"}, Background: true}, 1)
	testbed.Must(t, err)
	testbed.Must(t, a.Forget(t.Context(), id))
	stdout(t, frames)
}

func TestRunOfAnOlderAgent(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var calls []string
	cl := against(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		calls = append(calls, r.Method+" "+r.URL.Path)
		mu.Unlock()
		if r.Method == http.MethodPut {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, "{}\n")
			return
		}
		testbed.Check(t, r.URL.Query().Get("from") == "3", "query %q", r.URL.RawQuery)
		_, _ = w.Write(agent.AppendFrame(agent.AppendFrame(nil, agent.Frame{Seq: 3, Type: agent.FrameStdout, Payload: []byte("hello")}), agent.Frame{Seq: 4, Type: agent.FrameFinal, Payload: []byte("{}")}))
	})
	frames, err := cl.Run(t.Context(), "job", agent.Spec{Kind: farm.KindCommand}, 3)
	testbed.Must(t, err)
	testbed.Diff(t, "output", "hello", stdout(t, frames))
	mu.Lock()
	defer mu.Unlock()
	testbed.Diff(t, "", []string{"PUT /v1/executions/job", "GET /v1/executions/job/frames"}, slices.Clone(calls))
}

// What waits in a stream is charged to nobody, so a stream is opened with the least window that yamux has: the header with which the worker opens
// it adds nothing to that.
func TestStreamsHaveTheLeastWindow(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]client.Options{"Plain": {}, "Index": {Egress: http.NotFoundHandler()}, "Proxy": {Egress: http.NotFoundHandler(), Proxy: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			local, remote := net.Pipe()
			c, err := client.New(local, o)
			testbed.Must(t, err)
			t.Cleanup(func() { _ = c.Close() })
			go func() { _, _ = c.Info(t.Context()) }()
			header := make([]byte, 12)
			_, err = io.ReadFull(remote, header)
			testbed.Must(t, err)
			kind, flags := header[1], binary.BigEndian.Uint16(header[2:])
			testbed.Require(t, kind == 1 && flags == 1, "the worker did not open a stream with % x", header)
			more := binary.BigEndian.Uint32(header[8:])
			testbed.Check(t, more == 0, "the agent may send %d bytes beyond 256 KiB ahead", more)
		})
	}
}

// spoil answers a call with what is no HTTP, so that the worker closes its stream, and returns the agent's end, which stays open.
func spoil(t *testing.T, c *client.Client, session *yamux.Session) (*yamux.Stream, error) {
	t.Helper()
	go func() { _, _ = c.Info(t.Context()) }()
	stream, err := session.AcceptStream()
	if err != nil {
		return nil, err
	}
	if _, err = io.WriteString(stream, "no HTTP\r\n\r\n"); err != nil {
		return nil, err
	}
	_, err = io.Copy(io.Discard, stream) // to the end of the worker's direction
	return stream, err
}

// yamux keeps what arrives on a stream that the worker has closed until the agent closes it.
func TestDataOnAClosedStreamIsDiscarded(t *testing.T) {
	t.Parallel()
	c, session := hostileAgent(t, client.Options{})
	stream, err := spoil(t, c, session)
	testbed.Must(t, err)
	testbed.Must(t, stream.SetWriteDeadline(time.Now().Add(hang)))
	n, err := stream.Write(make([]byte, 16*256<<10))
	testbed.Check(t, err == nil, "after %d bytes: %v", n, err) // it would stop at the window
	testbed.Must(t, stream.Close())
	lives(t, session, "data on a closed stream")
}

func TestStreamsThatOnlyTheWorkerHasClosedAreBounded(t *testing.T) {
	t.Parallel()
	const most = 512
	c, session := hostileAgent(t, client.Options{})
	for i := range most {
		_, err := spoil(t, c, session)
		testbed.Require(t, err == nil, "after %d streams: %v", i, err)
	}
	lives(t, session, "as many streams as may be closing")
	_, _ = spoil(t, c, session) // the session may end in the middle of it
	awaitEnd(t, c, "one more stream that the agent does not close")
}
