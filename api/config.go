package api

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/guard"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Config are the settings of the server. Environment names begin with SANDFARM_API_.
type Config struct {
	// Listen must be a loopback address if there are no Keys. Port 0 picks a free port.
	Listen string `toml:"listen" default:"127.0.0.1:8000" doc:"Address to serve on. Without keys it must be a loopback address."`
	// Keys are the API keys. None: every caller is the tenant "default".
	Keys []KeyConfig `toml:"keys" doc:"API keys. Without keys everyone on this machine can use the farm."`
	// TrustedHosts are the names, in addition to loopback names, by which callers may address a server without keys.
	// Any other Host header is refused: a web page could have pointed its own name here (DNS rebinding).
	TrustedHosts []string `toml:"trusted_hosts" doc:"Host names, in addition to loopback names, under which a farm without keys answers."`
	// TrustedOrigins are the origins, in addition to loopback, whose pages may call MCP and the older systems' routes.
	TrustedOrigins []string `toml:"trusted_origins" doc:"Origins of web pages, in addition to loopback, that may call the MCP addresses and the routes of the older systems, such as https://chat.example.com."`
	// AllowPrivateCallbacks allows callback_url to point to private addresses.
	AllowPrivateCallbacks bool `toml:"allow_private_callbacks" default:"false" doc:"Allow callback_url to point to private addresses."`
	// Heartbeat is the interval of keep-alive comments in a quiet event stream.
	Heartbeat time.Duration `toml:"heartbeat" default:"15s" min:"1s" doc:"Interval of keep-alive comments in an event stream without events."`
	// StallTimeout closes a connection that stops in the middle of a body or an answer.
	StallTimeout time.Duration `toml:"stall_timeout" default:"30s" min:"1s" doc:"How long the transfer of a body or an answer may stall."`

	// Limits bound what callers may ask for. The zero value means farm.DefaultLimits.
	Limits farm.Limits `toml:"-"`
}

// KeyConfig is one key: its tenant, and the SHA-256 of the key in hex, so that the settings hold no secret.
type KeyConfig struct {
	Tenant string `toml:"tenant" doc:"Tenant that owns what is created with the key: letters, digits, dots, dashes and underscores."`
	SHA256 string `toml:"sha256" secret:"true" doc:"SHA-256 of the key, in hex (printf %s KEY | sha256sum)."`
}

// UnmarshalText reads "tenant:sha256", the form of the environment.
func (k *KeyConfig) UnmarshalText(text []byte) error {
	tenant, sum, ok := strings.Cut(string(text), ":")
	if !ok {
		return errors.New("a key is written as tenant:sha256")
	}
	k.Tenant, k.SHA256 = strings.TrimSpace(tenant), strings.TrimSpace(sum)
	return nil
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
	case len(c.Keys) == 0 && !guard.Loopback(host):
		problems = append(problems, fmt.Errorf("api.listen: %q is not a loopback address and no API key is set: set api.keys, or listen on 127.0.0.1", c.Listen))
	}
	seen := make(map[string]bool, len(c.Keys))
	for i, key := range c.Keys {
		if sum, err := hex.DecodeString(key.SHA256); err != nil || len(sum) != 32 {
			problems = append(problems, fmt.Errorf("api.keys[%d].sha256: must be the SHA-256 of a key, 64 hex digits", i))
		}
		if !farm.ValidTenant(key.Tenant) {
			problems = append(problems, fmt.Errorf("api.keys[%d].tenant: %q must be 1 to 64 letters, digits, dots, dashes and underscores", i, key.Tenant))
		}
		if sum := strings.ToLower(key.SHA256); seen[sum] {
			problems = append(problems, fmt.Errorf("api.keys[%d]: the same key is listed twice", i))
		} else {
			seen[sum] = true
		}
	}
	for name, d := range map[string]time.Duration{"api.heartbeat": c.Heartbeat, "api.stall_timeout": c.StallTimeout} {
		if d < time.Second {
			problems = append(problems, fmt.Errorf("%s: %s is below one second", name, d))
		}
	}
	return errors.Join(problems...)
}
