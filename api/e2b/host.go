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
func (d *Door) IsToken(ctx context.Context, text string) bool {
	if len(text) < minToken {
		return false
	}
	box, _, err := d.read(ctx, text)
	return err != nil || box.ID != ""
}
