package egressproxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Secret is a header that the proxy sets in requests for one host and port 443, over TLS that it makes or ends itself.
type Secret struct {
	farm.Secret
	Value string // "": it cannot be read; then requests for the host are refused
}

// text is the value of the header.
func (s Secret) text() string {
	if s.Scheme == "" {
		return s.Value
	}
	return s.Scheme + " " + s.Value
}

// secretsOf are the secrets for a target, whose port is that of secrets then: a host with a secret is never asked over plain HTTP.
func (r Rules) secretsOf(to target, port int) (target, []Secret) {
	if to.port != httpPort && to.port != port {
		return to, nil
	}
	var found []Secret
	for _, s := range r.Secrets {
		if s.Host == to.host {
			found = append(found, s)
		}
	}
	switch {
	case len(found) == 0:
		return to, nil
	case to.method == http.MethodConnect && to.port != port:
		return to, nil // what is inside is TLS for whoever listens there
	}
	to.port = port
	return to, found
}

// secretProblem is why a request for a host with secrets is refused; "": it is not.
func secretProblem(to target, secrets []Secret) string {
	switch {
	case len(secrets) == 0:
		return ""
	case slices.ContainsFunc(secrets, func(s Secret) bool { return s.Value == "" }):
		return ReasonSecret
	case to.method == http.MethodTrace:
		return ReasonTrace
	}
	return ""
}

// secretNames are the names for the report.
func secretNames(secrets []Secret) []string {
	var names []string
	for _, s := range secrets {
		names = append(names, s.Name)
	}
	return names
}

// askFor are headers that let a client choose the form of an answer, so that a secret in it would not be found: compressed, in parts, also by the older name
// of Range, or in another encoding of characters.
var askFor = [...]string{"Accept-Encoding", "Range", "Request-Range", "If-Range", "Accept-Charset", "Te", "Trailer"}

// addSecrets sets the headers of a request.
func addSecrets(h http.Header, secrets []Secret) {
	for name := range h {
		same := dashed(name)
		if slices.Contains(askFor[:], same) || slices.ContainsFunc(secrets, func(s Secret) bool { return dashed(s.Header) == same }) {
			delete(h, name)
		}
	}
	h.Set("Accept-Encoding", "identity")
	for _, s := range secrets {
		h.Set(s.Header, s.text())
	}
}

// Why an answer to a request with a secret is ended.
var (
	errEcho    = errors.New("the answer contains the secret")
	errEncoded = errors.New("the answer is compressed")
)

// guardAnswer refuses an answer that repeats a secret, or that cannot be searched for one, and watches its body.
func guardAnswer(res *http.Response) error {
	ctx := res.Request.Context()
	l := linkOf(ctx)
	if len(l.secrets) == 0 {
		return nil
	}
	sought := newSearch(l.secrets)
	size, echoed := 0, false
	for name, values := range res.Header {
		size += len(name) + len(strings.Join(values, ""))
	}
	err := sought.onCore(ctx, size, func() {
		for name, values := range res.Header {
			echoed = echoed || sought.foundInName([]byte(name)) || slices.ContainsFunc(values, func(text string) bool { return sought.found([]byte(text)) })
		}
	})
	switch {
	case err != nil:
		return err
	case echoed:
		return errEcho
	}
	for _, coding := range res.Header.Values("Content-Encoding") {
		if !strings.EqualFold(strings.TrimSpace(coding), "identity") {
			return errEncoded
		}
	}
	res.Trailer = nil
	res.Body = &guardedBody{
		Closer: res.Body, from: res.Body, ctx: ctx, sought: sought,
		found: func() { l.end(Denied, ReasonEcho) }, dropTrailer: func() { res.Trailer = nil },
	}
	return nil
}

// search looks for secrets in texts, as they are and behind the escapes of JSON and of URLs. It is used by one goroutine at a time.
type search struct {
	forms         [][]byte
	escaped, fold []farm.Sought
	longest       int // how many bytes a form may have with an escape for each byte
	memory        farm.EscapeSearch
}

func newSearch(secrets []Secret) *search {
	s := &search{}
	for _, one := range secrets {
		for _, form := range farm.SecretForms(one.Value) {
			text := []byte(form)
			s.forms, s.escaped, s.fold = append(s.forms, text), append(s.escaped, farm.NewSought(text, false)), append(s.fold, farm.NewSought(text, true))
			s.longest = max(s.longest, farm.EscapeBytes*len(form))
		}
	}
	return s
}

func (s *search) found(text []byte) bool {
	return slices.ContainsFunc(s.forms, func(form []byte) bool { return bytes.Contains(text, form) }) || s.memory.Finds(text, s.escaped)
}

// onCore searches size bytes on one of the cores of a tenant (budget.Core). The error is that of ctx.
func (s *search) onCore(ctx context.Context, size int, search func()) error {
	leave, err := budget.Core(ctx, size*len(s.forms))
	if err != nil {
		return err
	}
	defer leave()
	search()
	return nil
}

// foundInName searches the name of a header, which has lost the case of its letters.
func (s *search) foundInName(name []byte) bool {
	return slices.ContainsFunc(s.forms, func(form []byte) bool { return bytes.Contains(bytes.ToLower(name), bytes.ToLower(form)) }) || s.memory.Finds(name, s.fold)
}

// guardedBody is a body that ends before a secret. Until more has been read, the last bytes are withheld, whatever they are: as many as the beginning
// of an escaped secret may have. Lines that are complete are not, since no secret has a line break, so what comes in lines, such as server-sent
// events, is passed on as it arrives. What breaks off ends without what is withheld.
//
// So the sizes and times of the pieces that a client gets depend on what the host sends, on its lines, and on the length of the longest secret, and not on the
// characters of the secret: else code that has a host repeat its guesses could find them one by one. What remains: an answer that ends tells
// that a whole secret was right; the search takes some nanoseconds more or less; and a host whose answer is complete within the secret gives away its beginning.
type guardedBody struct {
	io.Closer
	from        io.Reader
	ctx         context.Context //nolint:containedctx // it has the Hold of its tenant
	sought      *search
	found       func()
	dropTrailer func() // trailers are known, and not searched, at the end

	buf  []byte // what has been read
	free int    // how much of it may be passed on
	more int    // how much of it has not been searched
	err  error  // after it
}

// Read returns bytes that are not part of a secret.
func (g *guardedBody) Read(b []byte) (int, error) {
	for g.free == 0 {
		if g.err != nil {
			return 0, g.err
		}
		g.fill(max(len(b), restBytes))
	}
	n := copy(b, g.buf[:g.free])
	g.buf, g.free = g.buf[n:], g.free-n
	return n, nil
}

// fill reads more. Withheld bytes are searched again together with the new ones, so short reads are gathered before: else a host that sends single bytes
// would have all of them searched for each.
func (g *guardedBody) fill(size int) {
	kept := len(g.buf)
	if cap(g.buf)-kept < size/2 { // else each short read would cost a buffer
		g.buf = append(make([]byte, 0, kept+size), g.buf...)
	}
	n, err := g.from.Read(g.buf[kept:cap(g.buf)])
	g.buf, g.err = g.buf[:kept+n], err
	g.more += n
	if err == nil && g.more < g.sought.longest/2 && bytes.IndexByte(g.buf[kept:], '\n') < 0 {
		return
	}
	g.more = 0
	echoed := false
	if failed := g.sought.onCore(g.ctx, len(g.buf), func() { echoed = g.sought.found(g.buf) }); failed != nil {
		g.buf, g.err = nil, failed
		return
	}
	switch {
	case echoed:
		g.found()
		g.buf, g.err = nil, errEcho
	case errors.Is(err, io.EOF):
		g.dropTrailer()
		g.free = len(g.buf)
	default:
		g.free = max(bytes.LastIndexByte(g.buf, '\n')+1, len(g.buf)-(g.sought.longest-1))
	}
}

// finalOnly passes on the final answer only: the headers of informational responses are not searched for secrets.
type finalOnly struct{ http.ResponseWriter }

// Unwrap is for http.ResponseController.
func (w finalOnly) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader drops informational answers.
func (w finalOnly) WriteHeader(code int) {
	if code >= http.StatusOK {
		w.ResponseWriter.WriteHeader(code)
	}
}

// certificateProblem reports whether a host's certificate was refused.
func certificateProblem(err error) bool {
	var wrong *tls.CertificateVerificationError
	return errors.As(err, &wrong)
}
