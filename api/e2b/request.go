package e2b

import (
	"bytes"
	"encoding/json"
	"net"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// bind decodes a JSON body; an empty one is an empty object.
func (d *Door) bind(c *gin.Context, into any) (text []byte, err error) {
	if text, err = rest.ReadJSON(c, d.MaxBody); err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return text, nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return nil, rest.BadRequestf("the body is not what this request takes: %s", err)
	}
	return text, nil
}

// images are the names of templates that every user of E2B knows.
var images = []string{"base", "code-interpreter-v1", "code-interpreter"}

// noIdle is the idle limit of sandboxes here: E2B has none.
var noIdle = 0

// defaultTimeout is how long a sandbox lives if nothing is said, in seconds.
const (
	defaultTimeout    = 300
	defaultTimeoutOld = 15 // of the route before /v2
)

// create makes the farm's request of a create.
func (r createRequest) create(standard int, bounds farm.Limits) (wire.CreateRequest, error) {
	out := wire.CreateRequest{Env: r.EnvVars, Labels: r.Metadata, IdleSeconds: &noIdle}
	switch {
	case r.TemplateID == "":
		return out, rest.BadRequestf("templateID is missing: it is the name of an image of this farm, or base.")
	case !slices.Contains(images, r.TemplateID):
		out.Image = &r.TemplateID
	}
	for name, value := range map[string]json.RawMessage{"mcp": r.MCP, "iam": r.IAM} {
		if given(value) {
			return out, rest.BadRequestf("This farm does not offer %s.", name)
		}
	}
	if len(r.VolumeMounts) > 0 {
		return out, rest.BadRequestf("This farm has no volumes (volumeMounts).")
	}
	if r.Timeout != nil {
		standard = *r.Timeout
	}
	life, err := seconds(standard, bounds)
	if err != nil {
		return out, err
	}
	out.TTLSeconds = &life
	if r.AutoPause {
		hibernate := string(farm.OnIdleHibernate)
		out.OnIdle, out.IdleSeconds, out.TTLSeconds = &hibernate, &life, &bounds.TTLMaxSeconds
	}
	return out, r.reach(&out)
}

// given reports whether a field has a value.
func given(raw json.RawMessage) bool {
	text := string(bytes.TrimSpace(raw))
	return text != "" && text != "null" && text != "{}" && text != "[]"
}

// seconds checks a timeout. One that is shorter than the farm's shortest is that one.
func seconds(timeout int, bounds farm.Limits) (int, error) {
	if timeout < 0 || timeout > bounds.TTLMaxSeconds {
		return 0, rest.BadRequestf("timeout is %d; it must be from 0 to %d seconds on this farm", timeout, bounds.TTLMaxSeconds)
	}
	return max(timeout, bounds.TTLMinSeconds), nil
}

// everything is what E2B calls all addresses.
const everything = "0.0.0.0/0"

// reach sets the network. Where nothing is said, and where the Internet is allowed, a sandbox reaches what the farm's default lets it reach:
// none of its networks reaches everything.
func (r createRequest) reach(out *wire.CreateRequest) error {
	none, allowlist := string(farm.NetworkNone), string(farm.NetworkAllowlist)
	if r.AllowInternet != nil && !*r.AllowInternet {
		out.Network = &none
	}
	n := r.Network
	if n == nil {
		return nil
	}
	switch {
	case given(n.Rules), given(n.EgressProxy), len(n.DNSServers) > 0, n.MaskRequestHost != "":
		return rest.BadRequestf("This farm does not offer rules, egressProxy, dnsServers and maskRequestHost of a network. Secrets that a proxy adds to requests are made with POST /v1/sandboxes.")
	case len(n.AllowOut) == 0 && len(n.DenyOut) == 0:
		return nil
	case len(n.DenyOut) > 0 && !slices.Contains(n.DenyOut, everything):
		return rest.BadRequestf("This farm has no list of denied addresses: deny all (%s), and name in allowOut what is allowed.", everything)
	case len(n.AllowOut) == 0:
		out.Network = &none
		return nil
	case len(n.DenyOut) == 0 && out.Network == nil:
		return rest.BadRequestf("A list of allowed hosts needs denyOut: [%q], since nothing else is denied otherwise.", everything)
	}
	for _, host := range n.AllowOut {
		if net.ParseIP(host) != nil || strings.Contains(host, "/") {
			return rest.BadRequestf("allowOut holds %q: this farm allows hosts by their names.", farm.Shorten(host))
		}
	}
	out.Network, out.AllowHosts = &allowlist, n.AllowOut
	return nil
}
