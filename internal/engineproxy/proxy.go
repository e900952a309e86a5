// Package engineproxy is a proxy between workers and a Docker engine. Whoever can use the engine's socket is root on its host; who can use
// only the proxy's can do what a farm does: make, use and remove the sandboxes of one namespace.
//
// It allows the calls in routes.go and no others. Every request is made anew from what was checked: path, query and body of the
// caller never reach the engine. Bodies of calls that create or change something are checked by engine.Checker, which makes them with the functions
// that package engine itself uses. A container is looked up first and used by its id, so that no other can take its name in between. What
// the engine answers about things of other programs is left out.
package engineproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/net/netutil"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
)

// Config describes a proxy. All fields but Builds are required.
type Config struct {
	Namespace string                                      // of the farm whose containers, volumes and images may be used
	Checker   *engine.Checker                             // checks bodies for that namespace
	Dial      func(ctx context.Context) (net.Conn, error) // connects to the engine
	Exec      func(user string, command []string) bool    // whether sandboxes may be entered this way. user is never root; "": that of the sandbox
	Builds    bool                                        // images may be built, pulled, imported, tagged and removed, which is code as root in a container
	MaxBody   int64                                       // bytes of a body that is checked
	Log       *slog.Logger
}

// Proxy is an http.Handler that passes on the calls of a farm to a Docker engine.
type Proxy struct {
	cfg        Config
	transport  *http.Transport
	routes     []route // that are allowed
	containers *known  // of this namespace: id → role
	execs      *known  // created here and not started
	refusals   refusals
	streams    streams
}

// New makes a proxy; nothing is started.
func New(cfg Config) *Proxy {
	return &Proxy{
		cfg: cfg, routes: routes(), containers: newKnown(), execs: newKnown(), refusals: refusals{log: cfg.Log}, streams: streams{open: map[net.Conn]bool{}},
		transport: &http.Transport{
			DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return cfg.Dial(ctx) },
			DisableCompression:  true,
			MaxIdleConnsPerHost: idleConnections,
		},
	}
}

// idleConnections to the engine are kept for the next calls.
const idleConnections = 16

// bodyTimeout bounds how long a caller may take to send a body that is checked.
const bodyTimeout = 30 * time.Second

// Close closes the streams and idle connections.
func (p *Proxy) Close() {
	p.streams.close()
	p.transport.CloseIdleConnections()
}

// refusal is the reason why a call is not passed on.
type refusal string

func (r refusal) Error() string { return string(r) }

func refuse(format string, args ...any) error { return refusal(fmt.Sprintf(format, args...)) }

// engineAnswer is an error that the engine itself answered to a question of the proxy.
type engineAnswer struct {
	status  int
	message string
}

func (a engineAnswer) Error() string { return a.message }

// ServeHTTP passes a call on, or answers 403 with a sentence that names the call and the reason.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	err := p.serve(w, r)
	var no refusal
	var answer engineAnswer
	switch {
	case err == nil:
	case errors.As(err, &no), farm.CodeOf(err) == farm.CodeInvalid:
		message := fmt.Sprintf("the engine proxy refuses %s %s: %v", farm.Shorten(r.Method), farm.Shorten(r.RequestURI), err)
		p.refusals.note(r.Context(), message)
		fail(w, http.StatusForbidden, message)
	case errors.As(err, &answer):
		fail(w, answer.status, answer.message)
	case r.Context().Err() != nil: // the caller is gone
		fail(w, http.StatusServiceUnavailable, "the call was given up")
	default:
		p.cfg.Log.WarnContext(r.Context(), "the engine does not answer", slog.Any("error", err))
		fail(w, http.StatusServiceUnavailable, "the engine proxy cannot reach the engine: "+err.Error())
	}
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) error {
	at, err := parsePath(r.RequestURI)
	if err != nil {
		return err
	}
	route, args := p.find(r.Method, at.segments)
	if route == nil {
		return refuse("it is not a call that a farm makes")
	}
	if at.version == "" && !route.unversioned {
		return refuse("it names no version of the API")
	}
	if err := route.checkQuery(at.query); err != nil {
		return err
	}
	if !route.hasBody && r.ContentLength != 0 {
		return refuse("it must have no body")
	}
	if route.builds && !p.cfg.Builds {
		return refuse("images cannot be built here (engine_proxy.builds)")
	}
	return route.serve(p, &call{w: w, r: r, at: at, args: args})
}

// fail answers with an error in the engine's form. The connection is closed, since its body may not have been read.
func fail(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Connection", "close")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"message": message}) // the caller may be gone
}

const (
	headerTimeout = 10 * time.Second // a caller on the same host sends its header at once
	headerMax     = 64 << 10         // filters are in the query
	stopTimeout   = 5 * time.Second  // of calls that run when the proxy is stopped
)

// Socket is where a proxy listens.
type Socket struct {
	Path           string      // of the Unix socket; its directory is made if it is missing
	Mode           fs.FileMode // of the socket: who may connect
	MaxConnections int         // open at a time; others wait
}

// Serve listens and serves until ctx ends. ready, which may be nil, is called when connections are accepted.
func (p *Proxy) Serve(ctx context.Context, s Socket, ready func()) error {
	listener, err := listen(ctx, s)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.Path, err)
	}
	server := &http.Server{
		Handler: p, DisableGeneralOptionsHandler: true, ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: headerMax,
		ErrorLog:    slog.NewLogLogger(p.cfg.Log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		p.Close()
		if server.Shutdown(grace) != nil {
			_ = server.Close()
		}
	})
	p.cfg.Log.InfoContext(ctx, "engine proxy listens", slog.String("socket", s.Path), slog.String("namespace", p.cfg.Namespace))
	if ready != nil {
		ready()
	}
	err = server.Serve(httpserver.BoundHeaders(server, netutil.LimitListener(listener, s.MaxConnections)))
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve: %w", err)
}

// listen makes the socket. One that a dead process left is replaced; only its owner can connect before its mode is set.
func listen(ctx context.Context, s Socket) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(s.Path), 0o755); err != nil { //nolint:gosec // others must reach the socket in it
		return nil, err
	}
	if info, err := os.Lstat(s.Path); err == nil {
		if info.Mode().Type() != fs.ModeSocket {
			return nil, errors.New("it exists and is no socket")
		}
		if conn, err := (&net.Dialer{}).DialContext(ctx, "unix", s.Path); err == nil {
			_ = conn.Close()
			return nil, errors.New("another process listens there")
		}
		if err := os.Remove(s.Path); err != nil {
			return nil, err
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", s.Path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(s.Path, s.Mode); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}
