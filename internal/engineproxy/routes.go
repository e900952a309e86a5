package engineproxy

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
)

// call is one request and its answer.
type call struct {
	w    http.ResponseWriter
	r    *http.Request
	at   address
	args []string // the parts of the path that * and ** stand for
}

// route is one call of the engine's API that a farm makes.
type route struct {
	method      string
	path        string                    // "*" stands for one part of the path, "**" for one or more
	query       map[string]*regexp.Regexp // allowed parameters with their values
	required    string                    // the parameter that must be there: the engine's default is another one
	repeated    string                    // the parameter that may be repeated
	hasBody     bool
	unversioned bool // may be called without a version
	builds      bool // needs Config.Builds
	serve       func(*Proxy, *call) error
}

var (
	one      = regexp.MustCompile(`^1$`)
	zero     = regexp.MustCompile(`^0$`)
	yes      = regexp.MustCompile(`^true$`)
	stdin    = regexp.MustCompile(`^-$`)
	mount    = regexp.MustCompile(`^/sandfarm$`)
	network  = regexp.MustCompile(`^(none|container:[0-9a-f]{64})$`)
	anything = regexp.MustCompile(`^`)
	saved    = regexp.MustCompile(`^` + engine.CheckpointName + `$`)
	number   = regexp.MustCompile(`^[0-9]{1,4}$`)
	name     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)
	image    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:/@-]*$`)
)

// routes returns all calls that are allowed.
func routes() []route {
	type params = map[string]*regexp.Regexp
	return []route{
		{method: "HEAD", path: "_ping", unversioned: true, serve: (*Proxy).passOn},
		{method: "GET", path: "_ping", unversioned: true, serve: (*Proxy).passOn},
		{method: "GET", path: "version", unversioned: true, serve: (*Proxy).passOn},
		{method: "GET", path: "info", serve: (*Proxy).info},

		{method: "GET", path: "containers/json", query: params{"all": one, "limit": number, "filters": anything}, serve: (*Proxy).listContainers},
		{method: "POST", path: "containers/create", query: params{"name": name}, hasBody: true, serve: (*Proxy).createContainer},
		{method: "GET", path: "containers/*/json", serve: (*Proxy).inspectContainer},
		{method: "POST", path: "containers/*/start", query: params{"checkpoint": saved}, serve: (*Proxy).useContainer},
		{method: "GET", path: "containers/*/checkpoints", serve: (*Proxy).useContainer},
		{method: "POST", path: "containers/*/checkpoints", hasBody: true, serve: (*Proxy).createCheckpoint},
		{method: "DELETE", path: "containers/*/checkpoints/" + engine.CheckpointName, serve: (*Proxy).removeCheckpoint},
		{method: "GET", path: "containers/*/stats", query: params{"stream": zero, "one-shot": one}, serve: (*Proxy).useContainer},
		{method: "POST", path: "containers/*/update", hasBody: true, serve: (*Proxy).updateContainer},
		{method: "PUT", path: "containers/*/archive", query: params{"path": mount, "noOverwriteDirNonDir": yes}, hasBody: true, serve: (*Proxy).fillVolume},
		{method: "GET", path: "containers/*/export", serve: (*Proxy).exportImage},
		{method: "DELETE", path: "containers/*", query: params{"force": one, "v": one}, serve: (*Proxy).removeContainer},
		{method: "POST", path: "containers/*/exec", hasBody: true, serve: (*Proxy).createExec},
		{method: "POST", path: "exec/*/start", hasBody: true, serve: (*Proxy).startExec},

		{method: "GET", path: "volumes", query: params{"filters": anything}, serve: (*Proxy).listVolumes},
		{method: "POST", path: "volumes/create", hasBody: true, serve: (*Proxy).createVolume},
		{method: "GET", path: "volumes/*", serve: (*Proxy).inspectVolume},
		{method: "DELETE", path: "volumes/*", query: params{"force": one}, serve: (*Proxy).removeVolume},

		{method: "GET", path: "images/json", query: params{"filters": anything}, serve: (*Proxy).listImages},
		{method: "GET", path: "images/**/json", serve: (*Proxy).inspectImage},
		{method: "DELETE", path: "images/**", serve: (*Proxy).removeImage},
		{method: "POST", path: "images/create", query: params{"fromSrc": stdin, "repo": image, "fromImage": image, "tag": image}, hasBody: true, serve: (*Proxy).createImage},
		{method: "POST", path: "images/**/tag", query: params{"repo": image, "tag": image}, serve: (*Proxy).tagImage},
		{method: "POST", path: "build", query: params{
			"t": image, "dockerfile": image, "buildargs": anything, "labels": anything, "networkmode": network,
			"nocache": one, "rm": one, "forcerm": one, "version": one,
		}, required: "networkmode", repeated: "t", hasBody: true, builds: true, serve: (*Proxy).build},
	}
}

// find returns the route of a call, and the parts of its path that its stars stand for; nil if there is none.
func (p *Proxy) find(method string, path []string) (*route, []string) {
	for i := range p.routes {
		if p.routes[i].method != method {
			continue
		}
		if args, ok := match(strings.Split(p.routes[i].path, "/"), path); ok {
			return &p.routes[i], args
		}
	}
	return nil, nil
}

// match compares the parts of a path with a pattern.
func match(pattern, path []string) (args []string, ok bool) {
	if i := slices.Index(pattern, "**"); i >= 0 {
		end := len(path) - (len(pattern) - i - 1)
		if end <= i || !slices.Equal(pattern[:i], path[:i]) || !slices.Equal(pattern[i+1:], path[end:]) {
			return nil, false
		}
		return []string{strings.Join(path[i:end], "/")}, true
	}
	if len(pattern) != len(path) {
		return nil, false
	}
	for i, part := range pattern {
		switch part {
		case "*":
			args = append(args, path[i])
		case path[i]:
		default:
			return nil, false
		}
	}
	return args, true
}

// checkQuery refuses parameters that a farm does not send, and calls without one that it always sends.
func (r *route) checkQuery(query url.Values) error {
	if r.required != "" && !query.Has(r.required) {
		return refuse("its query lacks %q", r.required)
	}
	for key, values := range query {
		form := r.query[key]
		if form == nil {
			return refuse("its query has %q", key)
		}
		if len(values) != 1 && key != r.repeated {
			return refuse("its query has %q more than once", key)
		}
		if !slices.ContainsFunc(values, form.MatchString) || slices.ContainsFunc(values, func(v string) bool { return !form.MatchString(v) }) {
			return refuse("its query has another value of %q than a farm sends", key)
		}
	}
	return nil
}

// knownMax is how many ids a proxy remembers. Beyond it, it forgets one, whose container is looked up again.
const knownMax = 10_000

// known remembers ids of the engine, which are never used twice.
type known struct {
	mu  sync.Mutex
	ids map[string]string
}

func newKnown() *known { return &known{ids: map[string]string{}} }

func (k *known) put(id, value string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.ids) >= knownMax {
		for other := range k.ids {
			delete(k.ids, other)
			break
		}
	}
	k.ids[id] = value
}

func (k *known) get(id string) (string, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	value, ok := k.ids[id]
	return value, ok
}

// take is get, and forgets the id.
func (k *known) take(id string) (string, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	value, ok := k.ids[id]
	delete(k.ids, id)
	return value, ok
}

// address is a parsed request target.
type address struct {
	version  string // such as "/v1.41"; empty: none
	segments []string
	query    url.Values
}

// path is the path without its version.
func (a address) path() string { return "/" + strings.Join(a.segments, "/") }

var (
	// pathForm has no escapes, no empty segments, and nothing that means something to a URL or a shell.
	pathForm = regexp.MustCompile(`^(/[A-Za-z0-9_.:@-]+)+$`)
	// versionForm are versions 1.40 to 1.99. In older ones, calls have other bodies: until 1.24 the start of a container had a HostConfig.
	versionForm = regexp.MustCompile(`^v1\.[4-9][0-9]$`)
)

// parsePath reads a request target as it was sent.
func parsePath(target string) (a address, err error) {
	path, query, _ := strings.Cut(target, "?")
	if !pathForm.MatchString(path) {
		return a, refuse("its path has characters or empty parts that no call of a farm has")
	}
	a.segments = strings.Split(path[1:], "/")
	if slices.Contains(a.segments, ".") || slices.Contains(a.segments, "..") {
		return a, refuse("its path has . or ..")
	}
	if versionForm.MatchString(a.segments[0]) {
		a.version, a.segments = "/"+a.segments[0], a.segments[1:]
	}
	if a.query, err = url.ParseQuery(query); err != nil {
		return a, refuse("its query cannot be read")
	}
	return a, nil
}

// refusalEvery bounds the log: who sends calls that are refused can send many.
const refusalEvery = time.Second

// refusals logs the first refused call of each second, and how many came between.
type refusals struct {
	log *slog.Logger

	mu      sync.Mutex
	last    time.Time
	skipped int
}

func (r *refusals) note(ctx context.Context, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if !r.last.IsZero() && now.Sub(r.last) < refusalEvery {
		r.skipped++
		return
	}
	r.log.WarnContext(ctx, "call refused", slog.String("reason", message), slog.Int("not_logged_before", r.skipped))
	r.last, r.skipped = now, 0
}
