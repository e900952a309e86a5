package outbound

import (
	"strings"
	"time"
)

// Verdict says what became of a connection.
type Verdict string

// The verdicts.
const (
	Allowed Verdict = "allowed" // it was made, and one of its ends closed it
	Denied  Verdict = "denied"  // the proxy refused it, or ended it at a limit
	Failed  Verdict = "failed"  // it was allowed, and the host could not be reached or broke it off
)

// Connection reports one connection, or one request over plain HTTP.
type Connection struct {
	At       time.Time // when it was asked for
	Host     string    // normalised; where it is no valid name, what was asked for, shortened and without control characters
	Port     int       // 0: none, or not a valid one
	Method   string    // CONNECT, or that of the request
	Verdict  Verdict
	Reason   string // a short phrase; "" if the verdict is Allowed
	Sent     int64  // bytes to the host, of headers and TLS too
	Received int64  // bytes from the host
	Duration time.Duration
	Secrets  []string // names of the secrets that were added
}

// The reasons of connections that were not allowed to the end.
const (
	ReasonForm       = "not a proxy request: CONNECT host:port or an absolute http:// URL is needed"
	ReasonHost       = "not a host name: addresses and single labels are not allowed"
	ReasonRule       = "no rule allows this host and port"
	ReasonCeiling    = "a rule of the sandbox allows this, but the farm's operator does not"
	ReasonMethod     = "no rule for this host allows this method"
	ReasonUpgrade    = "a plain request must not switch protocols: use https or wss"
	ReasonAddress    = "the name has an address that is not public"
	ReasonNoTLS      = "the tunnel does not begin with a TLS ClientHello"
	ReasonHello      = "the TLS ClientHello did not arrive in time"
	ReasonNoSNI      = "the TLS ClientHello names no server"
	ReasonSNI        = "the TLS ClientHello names another server than CONNECT"
	ReasonECH        = "the TLS ClientHello is encrypted (ECH)"
	ReasonSecret     = "the secrets of this host cannot be read now"
	ReasonTrace      = "TRACE would repeat the secrets of this host"
	ReasonEcho       = "the answer repeats a secret"
	ReasonEncoded    = "the answer is compressed though the proxy did not ask for it, so it cannot be searched for the secret"
	ReasonHostHeader = "the request names another host than its tunnel"
	ReasonTrust      = "the TLS handshake for a host with a secret failed: the program may not trust the certificate of the farm"
	ReasonCert       = "the certificate of the host is not valid"
	ReasonRate       = "too many connections in a minute"
	ReasonOpen       = "too many open connections"
	ReasonBytes      = "all bytes that this sandbox may transfer are used"
	ReasonIdle       = "nothing was sent for too long"
	ReasonRules      = "the rules were changed"
	ReasonClosed     = "the sandbox was closed, or its worker stops"
	ReasonName       = "the name could not be resolved"
	ReasonConnect    = "the host could not be reached"
	ReasonBroken     = "the connection broke"
	ReasonNotStarted = "the connection was given up before it was made"
)

// shown makes a host or method of user code fit for a log: printable ASCII, at most 253 bytes.
func shown(text string) string {
	const longest = 253
	text = text[:min(len(text), longest)]
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}
