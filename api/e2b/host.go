package e2b

import (
	"context"
	"net/http"
	"strconv"
)

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
func HasToken(h http.Header) bool { return h.Get(headerAccess) != "" || h.Get(headerTraffic) != "" }

// HideTokens removes from the header of a request what servers in sandboxes must not see: who has a token may do everything in its sandbox.
// A header X-Access-Token that is the server's own stays.
func (d *Door) HideTokens(ctx context.Context, h http.Header) {
	for _, name := range []string{headerSandbox, headerPort, headerTraffic} {
		h.Del(name)
	}
	for _, value := range h.Values(headerAccess) {
		if box, _, err := d.read(ctx, value); err != nil || box.ID != "" {
			h.Del(headerAccess)
			return
		}
	}
}
