package e2b

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/rest"
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
func (d *Door) token(ctx context.Context, kind tokenKind, b Box) (string, error) {
	return d.Signer.Seal(ctx, string(kind), b.Tenant, b.ID, b.Key)
}

// Port is the port of a sandbox that a request is for.
func Port(r *http.Request) string { return r.Header.Get(headerPort) }

// Open finds the sandbox that a request is for. It fails if the request does not prove that it may be: by an access token, a signed URL, or,
// where traffic says so, a traffic token, each made with a key that is still valid. What the request says of its port decides nothing.
func (d *Door) Open(r *http.Request, traffic bool) (Box, error) {
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
func (d *Door) held(ctx context.Context, box Box) error {
	keys, err := d.Keys(ctx, box.Tenant)
	if err == nil && !slices.Contains(keys, box.Key) {
		return farm.Errorf(farm.CodeUnauthorized, "The API key with which this token was made was revoked or has expired: connect to the sandbox with a valid one.")
	}
	return err
}

// read reads a token; the zero Box for one that is not valid.
func (d *Door) read(ctx context.Context, token string) (Box, tokenKind, error) {
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
func (d *Door) Running(ctx context.Context, box Box) error {
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
