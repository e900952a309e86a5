package farm

import (
	"encoding/base64"
	"slices"
	"strings"
)

// Secret is what a worker adds to requests of a sandbox for one host. The value is not here: it is sealed beside the sandbox's record.
type Secret struct {
	Name   string `json:"name"`             // the environment variable that has SecretPlaceholder
	Host   string `json:"host"`             // normal (see NormalHost); port 443
	Header string `json:"header"`           // the header that is set, in its canonical form
	Scheme string `json:"scheme,omitempty"` // stands before the value, with a space between, such as Bearer
}

const (
	// SecretPlaceholder is what code finds in the variables of secrets.
	SecretPlaceholder = "added-by-the-proxy" //nolint:gosec // no secret, but what stands in its place
	// SecretPort is the port of every secret.
	SecretPort = 443
	// minSecretBytes is the least length of a value: shorter ones would be found in ordinary answers.
	minSecretBytes = 8
)

// reservedHeaders cannot hold a secret: they say how a request is sent and read.
var reservedHeaders = []string{
	"accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host", "http2-settings", "if-range", "keep-alive",
	"range", "te", "trailer", "transfer-encoding", "upgrade", "user-agent", "x-http-method", "x-http-method-override", "x-method-override",
}

// ParseSecretHeader reads the header of a secret: a name, such as "X-Api-Key", or a name and what stands before the value, such as
// "Authorization: Bearer". CodeInvalid: it is not one, or the proxy needs this header itself.
func ParseSecretHeader(text string) (name, scheme string, err error) {
	name, scheme, _ = strings.Cut(text, ":")
	scheme = strings.TrimSpace(scheme)
	const maxBytes = 128
	switch low := strings.ToLower(name); {
	case name == "" || len(text) > maxBytes || strings.Trim(low, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" || !visible(scheme):
		return "", "", Invalidf("%q is not a header: write its name, and what stands before the value if anything does, such as \"X-Api-Key\" or \"Authorization: Bearer\"", Shorten(text))
	case slices.Contains(reservedHeaders, low) || strings.HasPrefix(low, "proxy-"):
		return "", "", Invalidf("the header %s cannot hold a secret, since the proxy sets it itself", name)
	}
	return name, scheme, nil
}

// ParseSecretHost reads the host of a secret: one exact name. CodeInvalid: it is none, or more than one.
func ParseSecretHost(text string) (string, error) {
	if strings.HasPrefix(text, "*") {
		return "", Invalidf("the host %q is more than one: a secret belongs to one exact host, since whoever owns a name below a wildcard would be sent it", Shorten(text))
	}
	host, problem := normalHost(text)
	if problem != "" {
		return "", Invalidf("%q is not the host of a secret: %s. Write the name alone; the port is always 443", Shorten(text), problem)
	}
	return host, nil
}

// MaxHostSecretBytes is how many bytes the values of all secrets of one host have at most: each answer of the host is searched for each of them, with
// tables of some 30 times their bytes.
const MaxHostSecretBytes = 8 << 10

// CheckHostSecrets refuses values that have too many bytes for one host. Those before, nil for a new sandbox, may have had more.
func CheckHostSecrets(secrets []Secret, values, before map[string]string) error {
	now, was := map[string]int{}, map[string]int{}
	for _, s := range secrets {
		now[s.Host] += len(values[s.Name])
		was[s.Host] += len(before[s.Name])
	}
	for _, s := range secrets {
		if now[s.Host] > max(MaxHostSecretBytes, was[s.Host]) {
			return Invalidf("the values of the secrets of %s have more than %d bytes together", s.Host, MaxHostSecretBytes)
		}
	}
	return nil
}

// CheckSecretValue refuses what cannot be the value of the secret of this name. The error does not contain the value.
func CheckSecretValue(name, value string, maxBytes int) error {
	switch {
	case len(value) < minSecretBytes || len(value) > maxBytes:
		return Invalidf("the value of the secret %s has %d bytes; from %d to %d are allowed", name, len(value), minSecretBytes, maxBytes)
	case !visible(value) || strings.TrimSpace(value) != value:
		return Invalidf("the value of the secret %s has characters that no header can have: use ASCII without control characters, and no space at either end", name)
	}
	if len(Unescaped([]byte(value))) < minSecretBytes {
		return Invalidf("the value of the secret %s has less than %d bytes without its backslashes and escapes, such as %%20", name, minSecretBytes)
	}
	for _, form := range SecretForms(value)[1:] {
		if len(Unescaped([]byte(form))) < minSecretBytes {
			return Invalidf("the part of the value of the secret %s behind its first space has less than %d bytes: give the whole token", name, minSecretBytes)
		}
	}
	return nil
}

// SecretForms are what an answer may repeat of a value, the value itself first: without what stands before its first space, and the password
// if it is name and password in base64. None has a line break.
func SecretForms(value string) []string {
	forms := []string{value}
	if _, token, found := strings.Cut(value, " "); found {
		forms = append(forms, token)
	}
	if pair, err := base64.StdEncoding.DecodeString(forms[len(forms)-1]); err == nil {
		_, password, _ := strings.Cut(strings.TrimSpace(string(pair)), ":")
		if len(password) >= minSecretBytes && !strings.Contains(password, "\n") {
			forms = append(forms, password)
		}
	}
	return forms
}

// visible reports whether a text is ASCII without control characters.
func visible(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}
