package api

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/guard"
	"github.com/sandfarm/sandfarm/api/ports"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/secret"
)

// Config are the settings of the server. Environment names begin with SANDFARM_API_.
type Config struct {
	// Listen must be a loopback address if there are no Keys. Port 0 picks a free port.
	Listen string `toml:"listen" default:"127.0.0.1:8000" doc:"Address to serve on. Without keys it must be a loopback address."`
	// Keys are the API keys of the settings. More are made at run time (sandfarm key create).
	Keys []KeyConfig `toml:"keys" doc:"API keys, in addition to those that are made at run time (sandfarm key create). Without any key everyone on this machine can use the farm."`
	// RequireKeys refuses callers without a key also while there is no key at all.
	RequireKeys bool `toml:"require_keys" default:"false" doc:"Refuse callers without a key even if there is no key yet. Then the farm may listen on any address, and sandfarm key create --local --tenant NAME --scope admin --scope run makes the first key."`
	// TrustedHosts are the names, in addition to loopback names, by which callers may address a server without keys.
	// Any other Host header is refused: a web page could have pointed its own name here (DNS rebinding).
	TrustedHosts []string `toml:"trusted_hosts" doc:"Host names, in addition to loopback names, under which a farm without keys answers. One with keys answers under every name."`
	// TrustedOrigins are the origins, in addition to the server's own, whose pages may call MCP and the older systems' routes.
	TrustedOrigins []string `toml:"trusted_origins" default:"http://localhost:3000,http://localhost:6274" doc:"Origins of web pages, in addition to the farm's own, that may call the MCP addresses, open the WebSockets of /jupyter and call the routes of the older systems, such as https://chat.example.com. The defaults are a front end in development and the MCP Inspector. Any page there can use a farm without keys: empty the list if you need neither."`
	// PreviewDomain is below which each port of a sandbox has an origin of its own.
	PreviewDomain string `toml:"preview_domain" doc:"Domain whose subdomains lead to this API: the links to ports of sandboxes are below it then, each an origin of its own (https://8888-sbx-….DOMAIN). Use a domain of its own, not below the API's host, with a wildcard in DNS and in its certificate. Empty: localhost for callers who name a loopback address, otherwise links below the API's own address. none: no such hosts."`
	// AuditReads adds reads to the audit.
	AuditReads bool `toml:"audit_reads" default:"false" doc:"Also write reads to the audit (sandfarm audit), and not only changes, jobs and refusals."`
	// AllowPrivateCallbacks allows callback_url to point to private addresses.
	AllowPrivateCallbacks bool `toml:"allow_private_callbacks" default:"false" doc:"Allow callback_url to point to private addresses, also to those of the farm's own machine: for a trial, or where every caller may reach what the farm can."`
	// Heartbeat is the interval of keep-alive comments in a quiet event stream.
	Heartbeat time.Duration `toml:"-"`
	// StallTimeout closes a connection that stops in the middle of a body or an answer.
	StallTimeout time.Duration `toml:"-"`

	// Limits bound what callers may ask for. The zero value means farm.DefaultLimits.
	Limits farm.Limits `toml:"-"`
	// Allow is what callers may allow to their sandboxes; empty: the network allowlist is not enabled.
	Allow []farm.HostRule `toml:"-"`
	// Secrets seal the secrets of sandboxes; nil: there can be none.
	Secrets *secret.Keys `toml:"-"`
}

var previewDomain = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

// KeyConfig is one key: its tenant, and the SHA-256 of the key in hex, so that the settings hold no secret.
type KeyConfig struct {
	Tenant string `toml:"tenant" doc:"Tenant that owns what is created with the key: letters, digits, dots, dashes and underscores, not only dots, and none of fleet, nodes, pool and room."`
	SHA256 string `toml:"sha256" secret:"true" doc:"SHA-256 of the key, in hex (printf %s KEY | sha256sum)."`
	// Scopes are the names of farm.Scope. None: run and metrics, and the view of the whole fleet.
	Scopes []string `toml:"scopes" doc:"What the key may do: run, read, metrics, admin. Empty: run, metrics, and see the whole fleet."`
}

// UnmarshalText reads "tenant:sha256" or "tenant:sha256:scope+scope", the form of the environment.
func (k *KeyConfig) UnmarshalText(text []byte) error {
	parts := strings.Split(string(text), ":")
	if len(parts) != 2 && len(parts) != 3 {
		return errors.New("a key is written as tenant:sha256, or as tenant:sha256:scope+scope (sandfarm config key prints one)")
	}
	k.Tenant, k.SHA256, k.Scopes = strings.TrimSpace(parts[0]), strings.TrimSpace(parts[1]), nil
	if len(parts) == 3 {
		for scope := range strings.SplitSeq(parts[2], "+") {
			k.Scopes = append(k.Scopes, strings.TrimSpace(scope))
		}
	}
	return nil
}

// record is the key as one that was made at run time. Its id derives from the hash, so it is the same in every process.
func (k KeyConfig) record() farm.Key {
	scopes, _ := farm.ParseScopes(k.Scopes) // checked by validate
	return farm.Key{ID: farm.DerivedID(farm.KeyPrefix, strings.ToLower(k.SHA256)), Tenant: k.Tenant, Scopes: scopes}
}

func (c Config) withDefaults() Config {
	if c.Listen == "" {
		c.Listen = "127.0.0.1:8000"
	}
	if c.Limits == (farm.Limits{}) {
		c.Limits = farm.DefaultLimits()
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = 15 * time.Second
	}
	if c.StallTimeout == 0 {
		c.StallTimeout = 30 * time.Second
	}
	return c
}

// Validate reports every problem of the settings. Zero fields count as their defaults.
func (c Config) Validate() error { return c.withDefaults().validate() }

func (c Config) validate() error {
	var problems []error
	host, _, err := net.SplitHostPort(c.Listen)
	switch {
	case err != nil:
		problems = append(problems, fmt.Errorf("api.listen: %q is not host:port", c.Listen))
	case len(c.Keys) == 0 && !c.RequireKeys && !guard.Loopback(host):
		problems = append(problems, fmt.Errorf("api.listen: %q is not a loopback address and no API key is set: set api.require_keys (SANDFARM_API_REQUIRE_KEYS=true) and make the first key with sandfarm key create --local --tenant NAME --scope admin --scope run, or set api.keys (SANDFARM_API_KEYS), or listen on 127.0.0.1", c.Listen))
	}
	if d := c.PreviewDomain; d != "" && d != ports.NoPreviews && !previewDomain.MatchString(d) {
		problems = append(problems, fmt.Errorf("api.preview_domain: %q is not a domain in lower case, without a scheme or a port", d))
	}
	for _, name := range append([]string{host}, c.TrustedHosts...) {
		if c.PreviewDomain != "" && !guard.Loopback(name) && strings.HasSuffix("."+c.PreviewDomain, "."+strings.ToLower(name)) {
			problems = append(problems, fmt.Errorf("api.preview_domain: %q is below the API's host %q, so pages of sandboxes could set its cookies: use a domain of its own", c.PreviewDomain, name))
		}
	}
	seen := make(map[string]bool, len(c.Keys))
	for i, key := range c.Keys {
		if sum, err := hex.DecodeString(key.SHA256); err != nil || len(sum) != 32 {
			problems = append(problems, fmt.Errorf("api.keys[%d].sha256: must be the SHA-256 of a key, 64 hex digits", i))
		}
		if _, err := farm.ParseScopes(key.Scopes); err != nil {
			problems = append(problems, fmt.Errorf("api.keys[%d].scopes: %w", i, err))
		}
		if !farm.ValidTenant(key.Tenant) {
			problems = append(problems, fmt.Errorf("api.keys[%d].tenant: %q must be "+farm.TenantNames, i, key.Tenant))
		}
		if sum := strings.ToLower(key.SHA256); seen[sum] {
			problems = append(problems, fmt.Errorf("api.keys[%d]: the same key is listed twice", i))
		} else {
			seen[sum] = true
		}
	}
	return errors.Join(problems...)
}
