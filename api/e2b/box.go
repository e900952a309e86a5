// Package e2b serves the sandboxes of the farm to the official SDKs of E2B, which need no change but their two addresses:
// E2B_API_URL and E2B_SANDBOX_URL are both the farm's address with /e2b behind it.
//
// It translates, and does nothing itself: a sandbox is a sandbox of the farm, a process one of its processes, a file one of its files, by the
// same service (api/service) as /v1, with the same limits, quotas and audit.
//
// Two kinds of requests arrive. Those to the control API (create, list, kill, …) carry an API key and go through the guards of /v1. Those to the
// data plane (envd at port 49983 of a sandbox, the code interpreter at port 49999) carry no key: they name the sandbox in the header
// E2b-Sandbox-Id and the port in E2b-Sandbox-Port, and prove by a token of that sandbox that they may (X-Access-Token, or, for the code
// interpreter, E2B-Traffic-Access-Token). A token names its tenant and its sandbox and is signed by the farm, so that no table is needed; Gateway.Open
// checks it. It works as long as its sandbox.
//
// To serve more of the data plane, write a Handler: it gets the request with its body unread, and the Box that it is for. By then the token was
// checked, the sandbox is known to run, and the request counts against the quotas of its tenant. Box.Tenant and Box.ID are what the methods of
// service.Service take. BoxRoutes (routes.go) names the handlers; that of the code interpreter is interpreter.serve, which gets
// /e2b/execute, /e2b/contexts and what is below it, and /e2b/health for the port 49999. An error that a handler returns is answered in E2B's
// form, {"code": …, "message": …}; a handler may also answer with an error itself.
package e2b

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// The ports of a sandbox that the SDKs use.
const (
	EnvdPort        = "49983"
	InterpreterPort = "49999"
)

// Headers of the data plane.
const (
	headerSandbox = "E2b-Sandbox-Id"
	headerPort    = "E2b-Sandbox-Port"
	headerAccess  = "X-Access-Token"
	HeaderTraffic = "E2b-Traffic-Access-Token"
)

// idPrefix begins the ids of sandboxes here. E2B's have letters and digits only, since they are parts of names of hosts.
const idPrefix = "sbx"

// ShownID is the id of a sandbox as the SDKs have it.
func ShownID(id string) string { return idPrefix + strings.TrimPrefix(id, farm.SandboxPrefix) }

// SandboxID is the id of the sandbox that the SDKs name so. One that has no such form is returned as it is, and names no sandbox.
func SandboxID(shown string) string {
	if rest, ok := strings.CutPrefix(shown, idPrefix); ok && !strings.HasPrefix(shown, farm.SandboxPrefix) {
		return farm.SandboxPrefix + rest
	}
	return shown
}

// Box is a sandbox that a request of the data plane is for, and may be for.
type Box struct {
	Tenant string
	ID     string // as in /v1
	Key    string // id of the API key with which the token was made; "": a farm without keys
}

// tokenKind is what a token is for.
type tokenKind string

const (
	accessToken  tokenKind = "e2b-access1"  // envd, and the rest
	trafficToken tokenKind = "e2b-traffic1" // the code interpreter, and every port of the sandbox's own programs
)

// token makes a token of a sandbox. It is the same each time.
func (d *Gateway) token(ctx context.Context, kind tokenKind, b Box) (string, error) {
	return d.Signer.Seal(ctx, string(kind), b.Tenant, b.ID, b.Key)
}

// Port is the port of a sandbox that a request is for.
func Port(r *http.Request) string { return r.Header.Get(headerPort) }

// Open finds the sandbox that a request is for. It fails if the request does not prove that it may be: by an access token, a signed URL, or,
// where traffic says so, a traffic token, each made with a key that is still valid. What the request says of its port decides nothing.
func (d *Gateway) Open(r *http.Request, traffic bool) (Box, error) {
	shown := r.Header.Get(headerSandbox)
	if !HasToken(r.Header) {
		if u, ok, err := d.urlOf(r); err != nil {
			return Box{}, err
		} else if ok {
			named := ""
			if shown != "" {
				named = SandboxID(shown)
			}
			return d.signer(r, u, named)
		}
	}
	if shown == "" && !HasToken(r.Header) {
		return Box{}, rest.BadRequestf("The header %s is missing: it names the sandbox.", headerSandbox)
	}
	kinds := []tokenKind{accessToken}
	if traffic {
		kinds = append(kinds, trafficToken)
	}
	for _, header := range []string{headerAccess, HeaderTraffic} {
		for _, token := range r.Header.Values(header) {
			box, kind, err := d.read(r.Context(), token)
			if err != nil {
				return Box{}, err
			}
			// Older SDKs (such as 2.7.0, of November 2025) send no such header with requests for files: their token names the sandbox.
			if box.ID != "" && (shown == "" || box.ID == SandboxID(shown)) && slices.Contains(kinds, kind) {
				return box, d.held(r.Context(), box)
			}
		}
	}
	if shown == "" {
		return Box{}, farm.Errorf(farm.CodeUnauthorized, "A token of a sandbox is needed (%s): create and connect answer with it.", headerAccess)
	}
	return Box{}, farm.Errorf(farm.CodeUnauthorized, "A token of the sandbox %s is needed (%s): create and connect answer with it.", farm.Shorten(shown), headerAccess)
}

// held fails if the key with which a token was made is no longer valid.
func (d *Gateway) held(ctx context.Context, box Box) error {
	keys, err := d.Keys(ctx, box.Tenant)
	if err == nil && !slices.Contains(keys, box.Key) {
		return farm.Errorf(farm.CodeUnauthorized, "The API key with which this token was made was revoked or has expired: connect to the sandbox with a valid one.")
	}
	return err
}

// read reads a token; the zero Box for one that is not valid.
func (d *Gateway) read(ctx context.Context, token string) (Box, tokenKind, error) {
	parts, err := d.Signer.Open(ctx, token)
	switch {
	case errors.Is(err, access.ErrToken):
		return Box{}, "", nil
	case err != nil:
		return Box{}, "", err
	case len(parts) != 4 || !farm.ValidID(farm.SandboxPrefix, parts[2]):
		return Box{}, "", nil
	}
	return Box{Tenant: parts[1], ID: parts[2], Key: parts[3]}, tokenKind(parts[0]), nil
}

// Running fails with a Gone if a sandbox does not run.
func (d *Gateway) Running(ctx context.Context, box Box) error {
	now, err := d.Service.Sandbox(ctx, box.Tenant, box.ID)
	switch {
	case farm.CodeOf(err) == farm.CodeNotFound:
		return gone(box)
	case err != nil:
		return err
	case !farm.SandboxState(now.State).Reachable():
		return gone(box)
	}
	return nil
}

// Handler serves a request to a sandbox.
type Handler func(c *gin.Context, box Box) error

// Deps are what a Gateway works with. All are required.
type Deps struct {
	Service *service.Service
	Signer  *access.Signer
	Logger  *slog.Logger
	Now     func() time.Time
	// Opened lists the open sandboxes of all tenants, and Keys the ids of a tenant's valid keys: tokens that were made with others are refused.
	Opened func(context.Context) ([]farm.Ref, error)
	Keys   func(ctx context.Context, tenant string) ([]string, error)
	// Hold ends the context of a request when the key of its caller ends.
	Hold func(context.Context, access.Caller) (held context.Context, release func())
	// ActFor serves a request for the caller whose token it carries, and says so in the audit. subject is what the token is for.
	ActFor func(c *gin.Context, caller access.Caller, subject string)
	Gate   *access.Gate
	Memory *budget.Budget // of requests; nil: without limit
	// MaxBody bounds a JSON body, in bytes.
	MaxBody int64
	// Stall is how long the transfer of a stream may stall.
	Stall time.Duration
	// Domain is below which the sender of a request reaches the hosts of ports, and becomes the domain of its SDK; "": the SDK keeps its own.
	Domain func(*http.Request) string
}

// Gateway serves the SDKs. It is safe for concurrent use.
type Gateway struct {
	Deps
	searches    *searches
	owners      service.Shared[map[string]string] // tenants of the sandboxes that were open, by id
	interpreter *interpreter                      // serves the port 49999 of sandboxes
}

// New makes a Gateway.
func New(deps Deps) *Gateway {
	return &Gateway{
		Deps: deps, searches: newSearches(), owners: service.Shared[map[string]string]{Pause: listPause},
		interpreter: &interpreter{service: deps.Service, maxBody: deps.MaxBody, now: deps.Now},
	}
}

// The SDKs reach a sandbox at hosts of its own, PORT-ID.DOMAIN, if they have no URL for all sandboxes. The host names what the headers name
// otherwise.

// IsService reports whether a port is that of a service of E2B. No program of the sandbox has to listen there.
func IsService(port int) bool {
	number := strconv.Itoa(port)
	return number == EnvdPort || number == InterpreterPort
}

// Name sets the headers of a request to a host: its port and its sandbox, with its id as in /v1.
func Name(r *http.Request, port int, sandbox string) {
	r.Header.Set(headerSandbox, ShownID(sandbox))
	r.Header.Set(headerPort, strconv.Itoa(port))
}

// HasToken reports whether a request brings a token of a sandbox.
func HasToken(h http.Header) bool { return h.Get(headerAccess) != "" || h.Get(HeaderTraffic) != "" }

// HideHeaders removes the headers of the data plane, which are not for servers in sandboxes. X-Access-Token may be such a server's own.
func HideHeaders(h http.Header) {
	for _, name := range []string{headerSandbox, headerPort, HeaderTraffic} {
		h.Del(name)
	}
}

// minToken is the length of the shortest token: a signature and an id.
const minToken = 40

// IsToken reports whether a text is a token of a sandbox, or may be: whoever has one may do everything in its sandbox.
func (d *Gateway) IsToken(ctx context.Context, text string) bool {
	if len(text) < minToken {
		return false
	}
	box, _, err := d.read(ctx, text)
	return err != nil || box.ID != ""
}

// A sandbox of the farm has one user, who is never root. To the SDKs its home is /home/user: that is the workspace, where code runs, too; in the
// farm's images a link leads from one to the other.
const (
	// userHome is the workspace, as the SDKs name it.
	userHome = farm.UserHome

	userName = "user"
)

// checkUser refuses every other user; "" is the default one.
func checkUser(name string) error {
	switch name {
	case "", userName:
		return nil
	case "root":
		return farm.Errorf(farm.CodeUnauthorized, "Sandboxes of this farm have no root: everything runs as the user %s.", userName)
	default:
		return farm.Errorf(farm.CodeUnauthorized, "invalid username: '%s'", farm.Shorten(name))
	}
}

// callUser checks the user that a call names.
func callUser(h http.Header) error {
	scheme, text, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Basic") {
		return nil
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil {
		return farm.Errorf(farm.CodeUnauthorized, "The header Authorization is not well formed.")
	}
	name, _, _ := strings.Cut(string(raw), ":")
	return checkUser(name)
}

// place is a path as a caller wrote it, and where it is in the sandbox.
type place struct {
	real string
	home bool // the caller means it below userHome, and shall see it there
}

// placeOf finds a path: absolute, or relative to userHome, which "~" is, too.
func placeOf(given string) place {
	if given == "~" || strings.HasPrefix(given, "~/") {
		given = "." + given[1:]
	}
	if !strings.HasPrefix(given, "/") {
		given = path.Join(userHome, given)
	}
	clean := path.Clean(given)
	if rest, ok := below(clean, userHome); ok {
		return place{real: path.Join(farm.Workspace, rest), home: true}
	}
	return place{real: clean}
}

// shown is a real path as the caller of this place sees it.
func (p place) shown(real string) string {
	if rest, ok := below(real, farm.Workspace); ok && p.home {
		return path.Join(userHome, rest)
	}
	return real
}

// below is the part of a path below a directory; ok is false if it is elsewhere.
func below(p, dir string) (rest string, ok bool) {
	if p == dir {
		return "", true
	}
	rest, ok = strings.CutPrefix(p, dir+"/")
	return rest, ok
}

// RealPath converts a caller's path to one in the sandbox.
func RealPath(given string) string { return placeOf(given).real }

// ShownPath converts a path in the sandbox to the one that callers see by default.
func ShownPath(real string) string { return place{home: true}.shown(real) }

// Environment adds to the variables of code the home, and the working directory as callers see it: shells then report /home/user instead of the
// target of that link. A caller's own values stay.
func Environment(env map[string]string, real string) map[string]string {
	out := map[string]string{"HOME": userHome, "PWD": ShownPath(real)}
	maps.Copy(out, env)
	return out
}
