package e2b

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// bind decodes a JSON body; an empty one is an empty object.
func (d *Gateway) bind(c *gin.Context, into any) (text []byte, err error) {
	err = rest.DecodeJSON(c, d.MaxBody, func(body []byte) error {
		if text = body; len(bytes.TrimSpace(body)) == 0 {
			return nil
		}
		return unmarshal(body, into)
	})
	return text, err
}

func unmarshal(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return rest.BadRequestf("the body is not what this request takes: %s", err)
	}
	return nil
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

// Gone says that a sandbox does not run: it has ended, or is paused. The SDKs know it by its status and its words.
type Gone struct{ box Box }

func gone(box Box) error { return &Gone{box} }

// Error is the sentence that the SDKs look for.
func (g *Gone) Error() string { return "The sandbox was not found" }

// goneBody is the answer to a request to a sandbox that is gone.
type goneBody struct {
	SandboxID string `json:"sandboxId"`
	Message   string `json:"message"`
	Code      int    `json:"code"`
}

// failure is any other answer with an error.
type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// headerRetry tells the SDKs whether a request may be sent again.
const headerRetry = "Should-Retry"

// Write answers for a sandbox that does not run.
func (g *Gone) Write(c *gin.Context) {
	c.Header(headerRetry, "false")
	_ = rest.Reply(c, http.StatusBadGateway, goneBody{ShownID(g.box.ID), g.Error(), http.StatusBadGateway})
	c.Abort()
}

// WriteFailure answers with an error in E2B's form. What the farm calls unprocessable is a bad request there. 409 means to the SDKs that a
// sandbox is paused already, so no error of the farm is one.
func WriteFailure(c *gin.Context, p wire.Problem) {
	status := p.Status
	switch {
	case status == http.StatusUnprocessableEntity, status == http.StatusConflict:
		status = http.StatusBadRequest
	case status == http.StatusServiceUnavailable && c.Request.Method == http.MethodPost:
		c.Header(headerRetry, "false") // it may have been done
	}
	_ = rest.Reply(c, status, failure{status, p.Detail})
}

// NotOffered refuses what E2B offers and the farm does not.
func NotOffered(what string) func(*gin.Context) error {
	return func(*gin.Context) error { return rest.BadRequestf("%s are not offered by this farm.", what) }
}

// createRequest is the body of a create. Fields that a newer SDK has and this farm does not know are ignored.
type createRequest struct {
	TemplateID    string            `json:"templateID"`
	Timeout       *int              `json:"timeout"` // seconds
	Metadata      map[string]string `json:"metadata"`
	EnvVars       map[string]string `json:"envVars"`
	AutoPause     bool              `json:"autoPause"`
	AllowInternet *bool             `json:"allow_internet_access"`
	Network       *networkRequest   `json:"network"`
	MCP           json.RawMessage   `json:"mcp"`
	IAM           json.RawMessage   `json:"iam"`
	VolumeMounts  []json.RawMessage `json:"volumeMounts"`
}

// networkRequest is what a create says of the network.
type networkRequest struct {
	AllowPublicTraffic *bool           `json:"allowPublicTraffic"`
	AllowOut           []string        `json:"allowOut"`
	DenyOut            []string        `json:"denyOut"`
	Rules              json.RawMessage `json:"rules"`
	EgressProxy        json.RawMessage `json:"egressProxy"`
	DNSServers         []string        `json:"dnsServers"`
	MaskRequestHost    string          `json:"maskRequestHost"`
}

// timeoutRequest is the body of a change of the timeout, and of a connect.
type timeoutRequest struct {
	Timeout *int `json:"timeout"` // seconds
}

// madeSandbox is the answer to a create and to a connect.
type madeSandbox struct {
	TemplateID  string `json:"templateID"`
	SandboxID   string `json:"sandboxID"`
	Alias       string `json:"alias"`
	ClientID    string `json:"clientID"`
	EnvdVersion string `json:"envdVersion"`
	Access      string `json:"envdAccessToken"`
	Traffic     string `json:"trafficAccessToken"`
	Domain      string `json:"domain,omitempty"`
}

// shownSandbox is a sandbox as lists and reads have it.
type shownSandbox struct {
	TemplateID  string            `json:"templateID"`
	SandboxID   string            `json:"sandboxID"`
	Alias       string            `json:"alias"`
	ClientID    string            `json:"clientID"`
	StartedAt   time.Time         `json:"startedAt"`
	EndAt       time.Time         `json:"endAt"`
	EnvdVersion string            `json:"envdVersion"`
	CPUCount    int               `json:"cpuCount"`
	MemoryMB    int               `json:"memoryMB"`
	DiskSizeMB  int               `json:"diskSizeMB"`
	State       string            `json:"state"`
	Metadata    map[string]string `json:"metadata"`
	Domain      string            `json:"domain,omitempty"`
}
