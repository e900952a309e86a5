package engineproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
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
