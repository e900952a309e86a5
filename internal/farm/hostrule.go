package farm

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// HostRule allows connections to one host, or to all hosts below one name. Its text form is "[METHODS ]host[:port]", for example
// "api.github.com", "*.githubusercontent.com", "api.example.com:8443" or "GET,HEAD data.example.com". Semicolons between methods are read like
// commas, for lists of rules whose own separator is the comma. Values are comparable. The zero value allows nothing.
type HostRule struct {
	host    string // normalised, without the wildcard; "" if any
	below   bool   // the hosts below host, not host itself
	any     bool   // every host
	port    int    // 0: defaultPorts
	methods string // sorted and separated by commas; "": every method
}

// defaultPorts are the ports of a rule that names none.
var defaultPorts = [...]int{80, 443}

const (
	maxHostBytes   = 253 // of a name in DNS, without the trailing dot
	maxLabelBytes  = 63
	maxMethods     = 16
	maxMethodBytes = 32
	maxPort        = 65535
	// maxRuleBytes bounds the text of a rule.
	maxRuleBytes = maxHostBytes + 2 + 6 + 1 + maxMethods*(maxMethodBytes+1)
)

// ParseHostRule parses the text form of a rule. Case and a trailing dot do not matter. A rule names hosts, never addresses, and neither localhost
// nor a name below it. "*.example.com" allows every host below example.com, but not example.com itself; "*" allows every host (see Any). Without a port, 80 and 443 are allowed.
// Methods restrict requests over plain HTTP; a rule with methods allows no CONNECT and so no HTTPS, whose method cannot be seen. The
// error has CodeInvalid and a sentence for the caller.
func ParseHostRule(text string) (HostRule, error) {
	if len(text) > maxRuleBytes {
		return HostRule{}, Invalidf("The rule %q has %d bytes; at most %d are allowed.", Shorten(text), len(text), maxRuleBytes)
	}
	var r HostRule
	rest := strings.TrimSpace(text)
	if methods, host, found := strings.Cut(rest, " "); found {
		var ok bool
		if r.methods, ok = parseMethods(methods); !ok {
			return HostRule{}, ruleError(text, "its methods are not valid: write them in capitals with commas or semicolons between, such as \"GET,HEAD data.example.com\"")
		}
		rest = strings.TrimSpace(host)
	}
	if strings.ContainsAny(rest, "/@") {
		return HostRule{}, ruleError(text, "write the name of the host alone, without a scheme, a user or a path")
	}
	if name, port, found := strings.Cut(rest, ":"); found {
		n, err := strconv.Atoi(port)
		if err != nil || n < 1 || n > maxPort || strconv.Itoa(n) != port {
			return HostRule{}, ruleError(text, "its port is not a number from 1 to 65535, or it is an address instead of a name: write a name, such as \"api.example.com:8443\"")
		}
		rest, r.port = name, n
	}
	if rest == "*" {
		r.any = true
		return r, nil
	}
	rest, r.below = strings.CutPrefix(rest, "*.")
	if name := "." + strings.ToLower(strings.TrimSuffix(rest, ".")); strings.HasSuffix(name, ".localhost") { // no program asks the proxy for it
		return HostRule{}, ruleError(text, "in a sandbox localhost and every name below it are the sandbox itself; "+
			"write another name of the host, such as one from /etc/hosts of the worker's machine")
	}
	host, problem := normalHost(rest)
	if problem != "" {
		return HostRule{}, ruleError(text, problem)
	}
	r.host = host
	return r, nil
}

func ruleError(text, problem string) error {
	return Invalidf("The rule %q allows no host: %s.", Shorten(text), problem)
}

// NormalHost returns a host name in lower case and without a trailing dot. ok is false for anything that is not a name of at least two
// labels: an address in any notation, a single label, a name with letters outside ASCII or over the limits of DNS.
func NormalHost(host string) (name string, ok bool) {
	name, problem := normalHost(host)
	return name, problem == ""
}

// normalHost is NormalHost with what is wrong, as the end of a sentence.
func normalHost(host string) (name, problem string) {
	name = strings.TrimSuffix(host, ".")
	if name == "" || len(name) > maxHostBytes {
		return "", "a host name has 1 to 253 characters"
	}
	for i := range len(name) {
		if name[i] >= 0x80 {
			return "", "write a name with other than ASCII letters in its xn-- form"
		}
	}
	name = strings.ToLower(name)
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if problem := labelProblem(label); problem != "" {
			return "", problem
		}
	}
	if last := labels[len(labels)-1]; numeric(last) { // resolvers read such a name as an IPv4 address
		return "", "it is an address: write a host name, such as api.example.com"
	}
	if len(labels) < 2 {
		return "", "a host name has at least two parts, such as example.com"
	}
	return name, ""
}

// labelProblem says what is wrong with one label in lower case; "": nothing.
func labelProblem(label string) string {
	switch {
	case label == "":
		return "a part of the name between two dots is empty"
	case len(label) > maxLabelBytes:
		return "each part of a host name has at most 63 characters"
	case label[0] == '-' || label[len(label)-1] == '-':
		return "no part of a host name begins or ends with a hyphen"
	}
	for i := range len(label) {
		c := label[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return "a host name consists of letters, digits, hyphens and dots; a * stands only at its beginning, before a dot"
		}
	}
	return ""
}

// numeric reports whether a label is a number in a notation that some parser of addresses accepts: decimal, octal or hexadecimal.
func numeric(label string) bool {
	digits := "0123456789"
	if hex, found := strings.CutPrefix(label, "0x"); found {
		label, digits = hex, "0123456789abcdef"
	}
	return strings.Trim(label, digits) == ""
}

// parseMethods normalises a list of methods. ok is false if one is not in capitals or the list is too long.
func parseMethods(text string) (methods string, ok bool) {
	list := strings.Split(strings.ReplaceAll(text, ";", ","), ",")
	if len(list) > maxMethods {
		return "", false
	}
	for _, m := range list {
		if m == "" || len(m) > maxMethodBytes || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "" || m == "CONNECT" {
			return "", false
		}
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ","), true
}

// String returns the text form; ParseHostRule of it gives the same rule. That of the zero value is "".
func (r HostRule) String() string {
	if r == (HostRule{}) {
		return ""
	}
	var text strings.Builder
	if r.methods != "" {
		text.WriteString(r.methods + " ")
	}
	switch {
	case r.any:
		text.WriteString("*")
	case r.below:
		text.WriteString("*.")
	}
	text.WriteString(r.host)
	if r.port != 0 {
		text.WriteString(":" + strconv.Itoa(r.port))
	}
	return text.String()
}

// MarshalText returns the text form.
func (r HostRule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText is ParseHostRule; empty text is the zero value.
func (r *HostRule) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*r = HostRule{}
		return nil
	}
	parsed, err := ParseHostRule(string(text))
	if err == nil {
		*r = parsed
	}
	return err
}

// Any reports whether the rule allows every host. Only operators may set such a rule.
func (r HostRule) Any() bool { return r.any }

// Allows reports whether the rule allows connections to a port of a host, which must be normal (see NormalHost). A connection is allowed
// only if AllowsMethod is true as well.
func (r HostRule) Allows(host string, port int) bool {
	switch {
	case r.any:
	case r.host == "":
		return false
	case r.below:
		if !strings.HasSuffix(host, "."+r.host) {
			return false
		}
	case host != r.host:
		return false
	}
	return r.allowsPort(port)
}

func (r HostRule) allowsPort(port int) bool {
	if r.port == 0 {
		return slices.Contains(defaultPorts[:], port)
	}
	return port == r.port
}

// AllowsMethod reports whether the rule allows a method of a request over plain HTTP, or CONNECT. A rule with methods does not allow CONNECT.
func (r HostRule) AllowsMethod(method string) bool {
	return r.methods == "" || slices.Contains(strings.Split(r.methods, ","), method)
}

// Covers reports whether this rule alone allows everything that another one allows: an operator's rule covers what callers may ask for.
func (r HostRule) Covers(other HostRule) bool {
	return r.coversHost(other) && r.coversPort(other) && r.coversMethods(other)
}

// Covered reports whether one of these rules covers another one: an operator's list is the ceiling of what callers may ask for.
func (r HostRule) Covered(by []HostRule) bool {
	return slices.ContainsFunc(by, func(a HostRule) bool { return a.Covers(r) })
}

func (r HostRule) coversHost(other HostRule) bool {
	switch {
	case r.any:
		return other != HostRule{}
	case r.host == "" || other.any || other.host == "":
		return false
	case r.below:
		return strings.HasSuffix(other.host, "."+r.host) || other.below && other.host == r.host
	default:
		return !other.below && other.host == r.host
	}
}

func (r HostRule) coversPort(other HostRule) bool {
	if other.port == 0 {
		return r.port == 0
	}
	return r.allowsPort(other.port)
}

func (r HostRule) coversMethods(other HostRule) bool {
	if r.methods == "" {
		return true
	}
	if other.methods == "" {
		return false
	}
	for m := range strings.SplitSeq(other.methods, ",") {
		if !r.AllowsMethod(m) {
			return false
		}
	}
	return true
}

// MaxTenantHosts bounds the rules in the ceiling of one tenant.
const MaxTenantHosts = 256

// ParseHostRules parses the rules of a ceiling. CodeInvalid: there are more than MaxTenantHosts, or one is no rule.
func ParseHostRules(texts []string) ([]HostRule, error) {
	if len(texts) > MaxTenantHosts {
		return nil, Invalidf("there are %d rules; at most %d are allowed", len(texts), MaxTenantHosts)
	}
	rules := make([]HostRule, len(texts))
	for i, text := range texts {
		var err error
		if rules[i], err = ParseHostRule(text); err != nil {
			return nil, err
		}
	}
	return rules, nil
}

// EgressEntry is one connection, or one request over plain HTTP, that a sandbox of the network allowlist asked for. It holds no path, header or
// content.
type EgressEntry struct {
	ID         string    `json:"-"` // its place in the log, which the store gives it
	At         time.Time `json:"at"`
	Host       string    `json:"host"`           // as it was asked for; user code chooses it
	Port       int       `json:"port,omitempty"` // 0: none, or not a valid one
	Method     string    `json:"method"`         // CONNECT for HTTPS, or that of the request
	Verdict    string    `json:"verdict"`        // allowed, denied or failed
	Reason     string    `json:"reason,omitempty"`
	Sent       int64     `json:"sent,omitempty"` // bytes, as Received
	Received   int64     `json:"received,omitempty"`
	DurationMS int64     `json:"duration_ms,omitempty"`
	Secrets    []string  `json:"secrets,omitempty"` // names of the secrets that were added
	Missed     int       `json:"missed,omitempty"`  // connections before this one that are not in the log
}
