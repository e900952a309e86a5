package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// MaxRequests is how many requests are served at once; polls of watches do not count.
	MaxRequests = 64
	// idleAfter is how long the process waits for a request before it ends. The agent starts it again for the next one.
	idleAfter = 5 * time.Minute
	// streamWindow is what may be on its way on one stream.
	streamWindow = 256 << 10
	// headerTimeout bounds reading the header of a request.
	headerTimeout = 30 * time.Second
)

// Server is what the process serves. The zero value is usable.
type Server struct {
	writing sync.Mutex // while conditions are checked and a file is renamed
	watches watches
	kept    keptFiles

	mu      sync.Mutex
	running int
	seen    time.Time // when the last request ended
}

// Serve serves one stream until it ends, or until nothing was asked for some minutes.
func Serve(conn io.ReadWriteCloser) error {
	config := yamux.DefaultConfig()
	config.MaxStreamWindowSize = streamWindow
	config.LogOutput = io.Discard
	config.EnableKeepAlive = false // it is one pair of sockets: if the agent ends, it is closed
	session, err := yamux.Server(agent.Joined(conn), config)
	if err != nil {
		return fmt.Errorf("open session: %w", err)
	}
	s := &Server{seen: time.Now()}
	defer s.watches.close()
	ctx, done := context.WithCancel(context.Background()) //nolint:forbidigo // the life of the process
	defer done()
	go s.endWhenIdle(ctx, session)
	srv := &http.Server{Handler: s.handler(), ReadHeaderTimeout: headerTimeout}
	err = srv.Serve(session)
	_ = srv.Close()
	if err != nil && !session.IsClosed() {
		return fmt.Errorf("serve session: %w", err)
	}
	return nil
}

// endWhenIdle closes the session when nothing was asked for a while and nothing is watched.
func (s *Server) endWhenIdle(ctx context.Context, session *yamux.Session) {
	tick := time.NewTicker(watchLife / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s.watches.expire(now)
			s.mu.Lock()
			idle := s.running == 0 && now.Sub(s.seen) > idleAfter && s.watches.count() == 0
			s.mu.Unlock()
			if idle {
				_ = session.Close()
				return
			}
		}
	}
}

// operation answers a request with what is sent as JSON; nil: it has answered itself.
type operation func(w http.ResponseWriter, r *http.Request) (any, error)

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	const base = agent.FSPath
	for pattern, do := range map[string]operation{
		"GET " + base:              s.list,
		"DELETE " + base:           s.remove,
		"GET " + base + "/content": s.read,
		"PUT " + base + "/content": s.write,
		"POST " + base + "/mkdir":  s.mkdir,
		"POST " + base + "/change": s.change,
		"POST " + base + "/move":   s.move,
		"POST " + base + "/copy":   s.copy,
		"POST " + base + "/link":   s.link,
		"GET " + base + "/tar":     s.pack,
		"POST " + base + "/tar":    s.unpack,
	} {
		mux.HandleFunc(pattern, s.counted(do))
	}
	for pattern, do := range map[string]operation{
		"PUT " + base + "/watches/{id}":    s.watches.put,
		"GET " + base + "/watches/{id}":    s.watches.get,
		"DELETE " + base + "/watches/{id}": s.watches.remove,
	} {
		mux.HandleFunc(pattern, do.serve)
	}
	return mux
}

// counted serves an operation unless too many run.
func (s *Server) counted(do operation) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		full := s.running >= MaxRequests
		if !full {
			s.running++
		}
		s.mu.Unlock()
		if full {
			fail(w, farm.Errorf(farm.CodeExhausted, "%d operations on files run in the sandbox, the most that it does at once. Try again.", MaxRequests))
			return
		}
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.running--
			s.seen = time.Now()
		}()
		do.serve(w, r)
	}
}

// serve answers a request. An error after the answer has begun breaks it off.
func (do operation) serve(w http.ResponseWriter, r *http.Request) {
	answer, err := do(w, r)
	switch {
	case errors.Is(err, errBroken):
		panic(http.ErrAbortHandler)
	case err != nil:
		fail(w, err)
	case answer != nil:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}
}

// errBroken says that an answer has begun and cannot be completed.
var errBroken = errors.New("the answer broke off")

func fail(w http.ResponseWriter, err error) {
	code, text := farm.CodeOf(err), named(err)
	if code == farm.CodeInternal {
		text = err.Error()
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(agent.StatusOf(code))
	_ = json.NewEncoder(w).Encode(map[string]string{"code": string(code), "message": text})
}

// pathOf reads a path of the query.
func pathOf(r *http.Request, name string) (string, error) {
	return farm.CleanFSPath(r.URL.Query().Get(name))
}

// number reads a number of the query; a missing one is missing.
func number(r *http.Request, name string, missing int64) (int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return missing, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, farm.Invalidf("%s is not a number from 0 on", name)
	}
	return n, nil
}

// modeOf reads the mode of the query; -1 if there is none.
func modeOf(r *http.Request) (int, error) {
	text := r.URL.Query().Get("mode")
	if text == "" {
		return -1, nil
	}
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n > farm.MaxMode {
		return 0, farm.Invalidf("mode is not an octal number from 0 to %o", farm.MaxMode)
	}
	return int(n), nil
}
