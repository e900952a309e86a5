package egressproxy

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// target is what a request asks for.
type target struct {
	host   string // normalised; fit for a log if the request is refused
	port   int
	method string
}

// String is how an answer names the target.
func (t target) String() string {
	if t.port == 0 {
		return t.host
	}
	return t.host + ":" + strconv.Itoa(t.port)
}

// httpPort is the port of an http:// URL without one.
const httpPort = 80

// targetOf reads the target of a request and returns why it is refused whatever the rules are; "": it is well formed.
func targetOf(r *http.Request) (to target, reason string) {
	to.method = shown(r.Method)
	if r.Method == http.MethodConnect {
		return tunnelTarget(r, to)
	}
	to.host = shown(r.URL.Host)
	if r.URL.Scheme != "http" || r.URL.Opaque != "" || r.URL.User != nil || r.URL.Host == "" || !strings.HasPrefix(r.RequestURI, "http://") {
		return to, ReasonForm
	}
	port := httpPort
	if text := r.URL.Port(); text != "" {
		if port = portOf(text); port == 0 {
			return to, ReasonForm
		}
	}
	host, ok := farm.NormalHost(r.URL.Hostname())
	if !ok || strings.ContainsAny(r.URL.Host, "[]") {
		return to, ReasonHost
	}
	to.host, to.port = host, port
	if upgrade := r.Header.Values("Upgrade"); len(upgrade) > 0 && !onlyH2C(upgrade) {
		return to, ReasonUpgrade
	}
	return to, ""
}

// tunnelTarget is targetOf for CONNECT, whose target is host:port and nothing else. A CONNECT with a body is two requests for someone.
func tunnelTarget(r *http.Request, to target) (target, string) {
	to.host = shown(r.RequestURI)
	host, text, err := net.SplitHostPort(r.RequestURI)
	if err != nil || r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
		return to, ReasonForm
	}
	port := portOf(text)
	if port == 0 {
		return to, ReasonForm
	}
	normal, ok := farm.NormalHost(host)
	if !ok || strings.HasPrefix(r.RequestURI, "[") {
		to.host, to.port = shown(host), port
		return to, ReasonHost
	}
	to.host, to.port = normal, port
	return to, ""
}

// portOf is 0 for anything but a decimal number from 1 to 65535.
func portOf(text string) int {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || strconv.FormatUint(port, 10) != text {
		return 0
	}
	return int(port) //nolint:gosec // at most 16 bits
}

// onlyH2C reports whether a client offers HTTP/2 only. Clients do that by themselves, and a server may ignore it: the offer is removed.
func onlyH2C(upgrade []string) bool {
	for _, value := range upgrade {
		if !strings.EqualFold(strings.TrimSpace(value), "h2c") {
			return false
		}
	}
	return true
}

// reasonAgainst says why rules do not allow a target; "": they do.
func reasonAgainst(rules Rules, to target) string {
	reason := ReasonRule
	for _, r := range rules.Allow {
		if !r.Allows(to.host, to.port) {
			continue
		}
		if r.AllowsMethod(to.method) {
			return ""
		}
		reason = ReasonMethod
	}
	for _, r := range rules.Beyond {
		if r.Allows(to.host, to.port) && r.AllowsMethod(to.method) {
			return ReasonCeiling
		}
	}
	return reason
}

// refuse answers a request that is not carried out.
func refuse(w http.ResponseWriter, to target, reason string) {
	status := http.StatusForbidden
	switch reason {
	case ReasonForm:
		status = http.StatusBadRequest
	case ReasonRate, ReasonOpen:
		status = http.StatusTooManyRequests
	case ReasonClosed:
		status = http.StatusServiceUnavailable
	case ReasonName, ReasonConnect, ReasonBroken, ReasonSecret, ReasonEcho, ReasonEncoded, ReasonCert:
		status = http.StatusBadGateway
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Connection", "close")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "%s %s was refused: %s.%s\n", to.method, to, reason, advice(reason))
}

// advice is what to do next.
func advice(reason string) string {
	switch reason {
	case ReasonRule:
		return " Add the host to allow_hosts of the sandbox, as \"host\" or \"host:port\"."
	case ReasonCeiling:
		return " Ask the farm's operator to allow the host."
	case ReasonMethod:
		return " Rules with methods are for plain HTTP with these methods; HTTPS needs a rule without methods."
	case ReasonHost:
		return " Use the name of the host."
	case ReasonSecret:
		return " Its worker needs the setting secrets.key, or the store has lost them: then create another sandbox."
	case ReasonRate, ReasonOpen, ReasonName, ReasonConnect, ReasonBroken:
		return " Try again later."
	default:
		return ""
	}
}
