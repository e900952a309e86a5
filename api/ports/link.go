package ports

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/guard"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// linkVersion begins what is signed.
const linkVersion = "port2"

// Link lets who has it use a port of a sandbox without a key, as long as the key with which it was made is valid.
type Link struct {
	Tenant, Sandbox string
	Key             string // id of that key; "": a farm without keys
	Port            int
	Expires         time.Time // in whole seconds; of a link that Open returns never zero
}

// Links signs links and checks them. It is safe for concurrent use.
type Links struct {
	signer *access.Signer
	keys   func(ctx context.Context, tenant string) ([]string, error)
	now    func() time.Time
}

// NewLinks makes Links. keys lists the ids of a tenant's valid keys.
func NewLinks(signer *access.Signer, keys func(ctx context.Context, tenant string) ([]string, error), now func() time.Time) *Links {
	return &Links{signer: signer, keys: keys, now: now}
}

// Sign makes the token of a link: letters, digits, '-', '_' and one '.'.
func (l *Links) Sign(ctx context.Context, k Link) (string, error) {
	return l.signer.Seal(ctx, linkVersion, k.Tenant, k.Sandbox, strconv.Itoa(k.Port), strconv.FormatInt(k.Expires.Unix(), 10), k.Key)
}

// ErrLink refuses a token that this farm did not sign, or not so.
var ErrLink = farm.Errorf(farm.CodeUnauthorized, "This link is not valid: it was changed, or another farm made it. Ask for a new one.")

// ErrExpired refuses a link after its time.
var ErrExpired = farm.Errorf(farm.CodeUnauthorized, "This link has expired. Ask for a new one.")

// ErrRevoked refuses a link whose key is no longer valid.
var ErrRevoked = farm.Errorf(farm.CodeUnauthorized, "The API key with which this link was made was revoked or has expired. Ask for a new one.")

// Open reads a token. ErrLink, ErrExpired and ErrRevoked refuse it.
func (l *Links) Open(ctx context.Context, token string) (Link, error) {
	parts, err := l.signer.Open(ctx, token)
	if errors.Is(err, access.ErrToken) {
		return Link{}, ErrLink
	}
	if err != nil {
		return Link{}, err
	}
	if len(parts) != 6 || parts[0] != linkVersion {
		return Link{}, ErrLink
	}
	port, bad := strconv.Atoi(parts[3])
	expires, worse := strconv.ParseInt(parts[4], 10, 64)
	if bad != nil || worse != nil {
		return Link{}, ErrLink
	}
	k := Link{Tenant: parts[1], Sandbox: parts[2], Port: port, Expires: time.Unix(expires, 0), Key: parts[5]}
	if !l.now().Before(k.Expires) {
		return Link{}, ErrExpired
	}
	valid, err := l.keys(ctx, k.Tenant)
	if err == nil && !slices.Contains(valid, k.Key) {
		err = ErrRevoked
	}
	return k, err
}

// hostPrefix begins the id of a sandbox in the name of a host, which has no '_'. plainPrefix does so in the names that the SDKs of E2B make.
var (
	hostPrefix  = strings.ReplaceAll(farm.SandboxPrefix, "_", "-")
	plainPrefix = strings.TrimSuffix(farm.SandboxPrefix, "_")
)

// Host is the name, below the domain of previews, of the origin that a port has for itself.
func Host(port int, sandbox, domain string) string {
	return strconv.Itoa(port) + "-" + hostPrefix + strings.TrimPrefix(sandbox, farm.SandboxPrefix) + "." + domain
}

// ParseHost reads such a name, in any case and with a port or a dot at its end. below says that a name is below the domain, whether it is one of
// a port or not.
func ParseHost(host, domain string) (port int, sandbox string, ok, below bool) {
	name, _, _ := strings.Cut(strings.ToLower(host), ":")
	label, below := strings.CutSuffix(strings.TrimSuffix(name, "."), "."+domain)
	number, id, cut := strings.Cut(label, "-"+hostPrefix)
	if !cut {
		number, id, cut = strings.Cut(label, "-"+plainPrefix)
	}
	port, err := strconv.Atoi(number)
	sandbox = farm.SandboxPrefix + id
	if !below || !cut || err != nil || port < 1 || port > 65535 || strconv.Itoa(port) != number || !farm.ValidID(farm.SandboxPrefix, sandbox) {
		return 0, "", false, below
	}
	return port, sandbox, true, true
}

// LinkName is the query parameter in which a link brings its token to the host of a port, and the cookie that keeps it there.
const LinkName = access.CookiePrefix + "_link"

// secureLinkName is the cookie's where the caller came by https: no other host can set it.
const secureLinkName = "__Host-" + LinkName

// TakeToken returns the token of a request to the host of a port, and the query without it. fromQuery says that it is not the cookie's.
func TakeToken(r *http.Request) (token, query string, fromQuery bool) {
	var rest []string
	for pair := range strings.SplitSeq(r.URL.RawQuery, "&") {
		if value, ok := strings.CutPrefix(pair, LinkName+"="); ok {
			token, fromQuery = value, true
		} else {
			rest = append(rest, pair)
		}
	}
	if fromQuery {
		return token, strings.Join(rest, "&"), true
	}
	name := LinkName
	if guard.Scheme(r) == "https" {
		name = secureLinkName
	}
	if c, err := r.Cookie(name); err == nil {
		token = c.Value
	}
	return token, r.URL.RawQuery, false
}

// Keep sets the cookie of a link.
func Keep(w http.ResponseWriter, r *http.Request, token string, expires time.Time) {
	c := &http.Cookie{Name: LinkName, Value: token, Path: "/", Expires: expires, HttpOnly: true, SameSite: http.SameSiteLaxMode}
	if guard.Scheme(r) == "https" {
		c.Name, c.Secure = secureLinkName, true
	}
	http.SetCookie(w, c)
}

// Foreign reports whether a browser sent a request for a page of another origin, and not because its user went there. Other ports of sandboxes
// are other origins, although their cookies may be sent along.
func Foreign(r *http.Request) bool {
	upgrade := r.Header.Get("Upgrade") != ""
	visit := (r.Method == http.MethodGet || r.Method == http.MethodHead) && !upgrade
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-site", "cross-site":
		return !visit || r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document" // a frame is no visit
	}
	origin := r.Header.Get("Origin") // a visit has none
	return origin != "" && !sameHost(origin, r.Host)
}

// sameHost reports whether an origin is that of a host. A proxy may have hidden the scheme.
func sameHost(origin, host string) bool {
	for _, scheme := range []string{"http://", "https://"} {
		if rest, ok := strings.CutPrefix(strings.ToLower(origin), scheme); ok {
			return strings.EqualFold(rest, host)
		}
	}
	return false
}
