package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxSpecBody bounds the JSON of a request: 10 MiB of code grow when they are quoted.
const maxSpecBody = 96 << 20

// handler returns an answer (nil: none) or an error.
type handler func(w http.ResponseWriter, r *http.Request) (any, error)

// routes are the endpoints of the agent.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range map[string]handler{
		"GET /v1/info":                       s.getInfo,
		"PUT /v1/deadline":                   s.putDeadline,
		"GET /v1/executions":                 s.getExecutions,
		"DELETE /v1/executions":              s.deleteExecutions,
		"PUT /v1/executions/{id}":            s.putExecution,
		"GET /v1/executions/{id}/frames":     s.getFrames,
		"POST /v1/executions/{id}/ack":       s.postAck,
		"POST /v1/executions/{id}/stop":      s.postStop,
		"DELETE /v1/executions/{id}":         s.deleteExecution,
		"POST /v1/interrupt":                 s.postInterrupt,
		"POST /v1/kernels/{context}/restart": s.postRestart,
		"POST /v1/kernels/{context}/start":   s.postStart,
		"POST /v1/kernels/{context}/warm":    s.postWarm,
		"GET /v1/packages":                   s.getPackages,
		"GET /v1/files":                      s.getFiles,
		"DELETE /v1/files":                   s.deleteFiles,
		"GET /v1/files/stat":                 s.getStat,
		"GET /v1/files/content":              s.getContent,
		"PUT /v1/files/content":              s.putContent,
		"POST /v1/files/mkdir":               s.postMkdir,
		"POST /v1/files/move":                s.postMove,
		"GET /v1/files/tar":                  s.getTar,
		"POST /v1/files/tar":                 s.postTar,

		"GET " + agent.ProcessesPath:                     s.getProcesses,
		"GET " + agent.RunningPath:                       s.getRunning,
		"POST " + agent.RunningPath + "/{pid}/signal":    s.postRunningSignal,
		"GET " + agent.UsePath:                           s.getUse,
		"PUT " + agent.ProcessesPath + "/{id}":           s.putProcess,
		"GET " + agent.ProcessesPath + "/{id}":           s.getProcess,
		"DELETE " + agent.ProcessesPath + "/{id}":        s.deleteProcess,
		"POST " + agent.ProcessesPath + "/{id}/signal":   s.postSignal,
		"POST " + agent.ProcessesPath + "/{id}/stdin":    s.postStdin,
		"POST " + agent.ProcessesPath + "/{id}/resize":   s.postResize,
		"GET " + agent.ProcessesPath + "/{id}/output":    s.getOutput,
		"DELETE " + agent.ProcessesPath + "/{id}/output": s.deleteReader,

		"GET " + agent.ContextsPath:                        s.getContexts,
		"PUT " + agent.ContextsPath + "/{context}":         s.putContext,
		"DELETE " + agent.ContextsPath + "/{context}":      s.deleteContext,
		"GET " + agent.KernelsPath + "/{context}/messages": s.getMessages,
		"POST " + agent.KernelsPath + "/{context}/ask":     s.postAsk,
		"POST " + agent.KernelsPath + "/{context}/input":   s.postInput,

		"GET " + agent.PortsPath:                                s.getPorts,
		"PUT " + agent.PortsPath + "/{port}":                    s.putPort,
		"PUT " + agent.ProcessesPath + "/{id}/writers/{writer}": s.putInput,
	} {
		mux.HandleFunc(pattern, h.serve)
	}
	mux.HandleFunc(agent.FSPath, handler(s.livefiles.pass).serve)
	mux.HandleFunc(agent.FSPath+"/", handler(s.livefiles.pass).serve)
	return mux
}

// serve answers with JSON. A handler that has already written returns nil, or an error that breaks the stream.
func (h handler) serve(w http.ResponseWriter, r *http.Request) {
	tracked := &tracker{ResponseWriter: w}
	answer, err := h(tracked, r)
	switch {
	case err != nil && tracked.wrote:
		panic(http.ErrAbortHandler) // the reader must not mistake a partial body for the whole
	case err != nil:
		writeError(w, err)
	case !tracked.wrote:
		if answer == nil {
			answer = struct{}{}
		}
		writeJSON(w, http.StatusOK, answer)
	}
}

// tracker records whether anything was written.
type tracker struct {
	http.ResponseWriter
	wrote bool
}

func (t *tracker) WriteHeader(status int) {
	t.wrote = true
	t.ResponseWriter.WriteHeader(status)
}

func (t *tracker) Write(b []byte) (int, error) {
	t.wrote = true
	return t.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (t *tracker) Unwrap() http.ResponseWriter { return t.ResponseWriter }

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false) // takes six bytes each, which count against the bounds of the worker
	_ = out.Encode(v)
}

// writeError sends code and message. An error without a code is sent in full: the worker logs it and does not show it to users.
func writeError(w http.ResponseWriter, err error) {
	code, text := farm.CodeOf(err), farm.MessageOf(err)
	if code == farm.CodeInternal {
		text = err.Error()
	}
	status := agent.StatusOf(code)
	if text == rangeSentence {
		status = http.StatusRequestedRangeNotSatisfiable
	}
	writeJSON(w, status, map[string]string{"code": string(code), "message": text})
}

// readJSON reads a bounded body.
func readJSON(w http.ResponseWriter, r *http.Request, into any) error {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxSpecBody))
	if err != nil {
		return farm.Wrap(err, farm.CodeInvalid, "the body could not be read")
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return farm.Wrap(err, farm.CodeInvalid, "the body is not valid JSON")
	}
	return nil
}

// acceptPause is the delay after a failed accept, which means that descriptors or memory ran out.
const acceptPause = 50 * time.Millisecond

// ListenAndServe listens on a unix socket (abstract if its path begins with @) and serves every connection of dialUID or root
// (-1: of any user) until ctx is done.
func (s *Server) ListenAndServe(ctx context.Context, path string, dialUID int) error {
	file := !strings.HasPrefix(path, "@")
	if err := os.Remove(path); file && err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove old socket: %w", err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	if file {
		if err := os.Chmod(path, 0o666); err != nil { //nolint:gosec // access is decided by the peer's uid
			return fmt.Errorf("open socket to others: %w", err)
		}
	}
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil // shutdown was requested
		}
		if err != nil {
			s.cfg.Logger.Warn("accept", "error", err)
			pause(ctx, acceptPause)
			continue
		}
		if !allowed(conn, dialUID) {
			_ = conn.Close()
			continue
		}
		go func() {
			if err := s.ServeConn(ctx, conn); err != nil {
				s.cfg.Logger.Warn("serve", "error", err)
			}
		}()
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// allowed reports whether the peer of a unix connection is dialUID or root.
func allowed(conn net.Conn, dialUID int) bool {
	if dialUID < 0 {
		return true
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) //nolint:gosec // a descriptor is small
	}); err != nil || credErr != nil {
		return false
	}
	return cred.Uid == 0 || int(cred.Uid) == dialUID
}
