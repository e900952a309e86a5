package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/files"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// rangeSentence is the error message when the offset is past the end of the file; its status is 416.
const rangeSentence = "the offset is past the end of the file"

func (s *Server) getFiles(_ http.ResponseWriter, r *http.Request) (any, error) {
	query := r.URL.Query()
	limit, err := number(r, "limit")
	if err != nil {
		return nil, err
	}
	return s.files.List(query.Get("path"), agent.ListQuery{
		Recursive: query.Get("recursive") == "true", After: query.Get("after"), Limit: int(min(limit, math.MaxInt32)), //nolint:gosec // bounded
	})
}

func (s *Server) getStat(_ http.ResponseWriter, r *http.Request) (any, error) {
	return s.files.Stat(r.URL.Query().Get("path"))
}

func (s *Server) deleteFiles(_ http.ResponseWriter, r *http.Request) (any, error) {
	return nil, s.files.Remove(r.URL.Query().Get("path"))
}

func (s *Server) postMkdir(_ http.ResponseWriter, r *http.Request) (any, error) {
	return nil, s.files.Mkdir(r.URL.Query().Get("path"))
}

func (s *Server) postMove(w http.ResponseWriter, r *http.Request) (any, error) {
	var in struct {
		From string `json:"from"`
		To   string `json:"to"`
	}
	if err := readJSON(w, r, &in); err != nil {
		return nil, err
	}
	return nil, s.files.Move(in.From, in.To)
}

func (s *Server) putContent(_ http.ResponseWriter, r *http.Request) (any, error) {
	mode := fs.FileMode(0o644)
	if text := r.URL.Query().Get("mode"); text != "" {
		n, err := strconv.ParseUint(text, 8, 32)
		if err != nil || n > 0o777 {
			return nil, farm.Invalidf("mode %q is not three octal digits", execution.Cut(text, 16))
		}
		mode = fs.FileMode(n)
	}
	return s.files.Write(r.URL.Query().Get("path"), mode, r.Body)
}

func (s *Server) postTar(_ http.ResponseWriter, r *http.Request) (any, error) {
	query, answer := r.URL.Query(), any(nil)
	var err error
	if query.Get("describe") == "true" {
		var placed agent.Listing
		placed.Entries, err = s.files.PutFiles(query.Get("path"), r.Body)
		answer = placed
	} else {
		err = s.files.PutTar(query.Get("path"), r.Body)
	}
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil { // padding after the end of the archive
		return nil, fmt.Errorf("read rest of body: %w", err)
	}
	return answer, nil
}

func (s *Server) getTar(w http.ResponseWriter, r *http.Request) (any, error) {
	return nil, s.files.WriteTar(r.URL.Query().Get("path"), w)
}

// getContent sends a file or a part of it, after a header with the entry of the whole file.
func (s *Server) getContent(w http.ResponseWriter, r *http.Request) (any, error) {
	offset, err := integer(r, "offset")
	if err != nil {
		return nil, err
	}
	length, err := integer(r, "length")
	if err != nil {
		return nil, err
	}
	f, e, err := s.files.Open(r.URL.Query().Get("path"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if offset < 0 {
		offset = max(0, e.Size+offset)
	}
	if offset > e.Size {
		return nil, farm.Invalidf(rangeSentence)
	}
	if length <= 0 || length > e.Size-offset {
		length = e.Size - offset
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return nil, files.Problem(err, e.Path)
	}
	raw, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	w.Header().Set("X-Entry", strings.ReplaceAll(string(raw), "\x7f", `\u007f`)) // the only control character that JSON does not escape
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
	w.WriteHeader(http.StatusOK)
	if _, err := io.CopyN(w, f, length); err != nil { // if the file has shrunk, the stream breaks and the reader gets an error
		return nil, err
	}
	return nil, nil
}

// integer parses a query parameter that may be negative; a missing one is 0.
func integer(r *http.Request, name string) (int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, farm.Invalidf("%s is not a number", name)
	}
	return n, nil
}

const (
	// filesWindow is what the process that serves files may send ahead on one stream.
	filesWindow = 256 << 10
	// filesHeader bounds the headers of its answers.
	filesHeader = 16 << 10
	// filesTries is how often a request without a body is sent: the process may end when nothing was asked for a while, and user code may end it.
	filesTries = 3
)

// livefiles passes requests for files on to a process that may do what user code may do, and no more: the agent itself could reach what is its
// own. It is started for the first request. Its answers are those of user code. Make it with its program and reaper.
type livefiles struct {
	program string
	reaper  *process.Reaper

	mu   sync.Mutex
	now  *filesProcess
	shut bool
}

// filesProcess is one such process.
type filesProcess struct {
	process   *process.Process
	session   *yamux.Session
	transport *http.Transport
}

// pass passes a request on.
func (l *livefiles) pass(w http.ResponseWriter, r *http.Request) (any, error) {
	var res *http.Response
	for try := 1; ; try++ {
		p, err := l.running()
		if err != nil {
			return nil, err
		}
		out := r.Clone(r.Context())
		out.URL.Scheme, out.URL.Host, out.Host, out.RequestURI = "http", "files", "", ""
		if res, err = p.transport.RoundTrip(out); err == nil { //nolint:bodyclose // below
			break
		}
		if cause := r.Context().Err(); cause != nil {
			return nil, cause
		}
		if r.ContentLength != 0 || try == filesTries || !p.session.IsClosed() {
			return nil, farm.Wrap(err, farm.CodeUnavailable, "The process that serves the files of the sandbox ended. Send the request again.")
		}
	}
	defer func() { _ = res.Body.Close() }()
	w.Header().Set("Content-Type", res.Header.Get("Content-Type"))
	w.WriteHeader(res.StatusCode)
	if _, err := io.Copy(w, res.Body); err != nil {
		return nil, fmt.Errorf("pass files on: %w", err) // breaks the answer off
	}
	return nil, nil
}

// running returns the process, and starts it if there is none.
func (l *livefiles) running() (*filesProcess, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shut {
		return nil, farm.Errorf(farm.CodeUnavailable, "The agent is shutting down.")
	}
	if l.now != nil && !l.now.session.IsClosed() {
		return l.now, nil
	}
	if l.now != nil {
		l.end()
	}
	p, err := l.start()
	if errors.Is(err, syscall.EAGAIN) {
		return nil, farm.Wrap(err, farm.CodeExhausted, "The files of the sandbox cannot be reached: "+process.OutOfProcesses)
	}
	if errors.Is(err, syscall.ENOMEM) {
		return nil, farm.Wrap(err, farm.CodeExhausted, "The files of the sandbox cannot be reached: its limit of memory is reached.")
	}
	if err != nil {
		return nil, fmt.Errorf("start to serve files: %w", err)
	}
	l.now = p
	return p, nil
}

// start starts the process as user code is started, with one end of a pair of sockets.
func (l *livefiles) start() (*filesProcess, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make sockets: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(ends[0]), "files"), ends[1] //nolint:gosec // descriptors are small
	defer func() {
		_ = ours.Close()
		_ = unix.Close(theirs)
	}()
	null, err := process.OpenNull()
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(null) }()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	files := [agent.FilesFD + 1]uintptr{uintptr(null), uintptr(null), uintptr(null), uintptr(theirs)} //nolint:gosec // as above
	proc, err := l.reaper.Start([]string{l.program, "files"}, []string{}, "/", files[:])
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	config := yamux.DefaultConfig()
	config.MaxStreamWindowSize = filesWindow
	config.AcceptBacklog = 1 // it opens no streams
	config.EnableKeepAlive = false
	config.LogOutput = io.Discard
	session, err := yamux.Client(agent.Joined(conn), config)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	p := &filesProcess{process: proc, session: session}
	p.transport = &http.Transport{
		DialContext:        func(context.Context, string, string) (net.Conn, error) { return session.Open() },
		DisableCompression: true, MaxResponseHeaderBytes: filesHeader, MaxIdleConnsPerHost: 4,
	}
	go func() {
		<-proc.Done()
		_ = session.Close()
	}()
	return p, nil
}

// end ends the process. The caller holds mu.
func (l *livefiles) end() {
	if l.now == nil {
		return
	}
	_ = l.now.session.Close()
	l.now.transport.CloseIdleConnections()
	l.reaper.Signal(l.now.process, syscall.SIGKILL)
	l.now = nil
}

// close ends the process for good.
func (l *livefiles) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shut = true
	l.end()
}
