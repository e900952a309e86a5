package ports

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/e2b"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// asIsHeader of a request to a port leaves the paths of redirects and cookies as the server sends them.
const asIsHeader = "Sandfarm-Rewrite"

// passToPort passes a request of a caller with a key on to a port.
func (s *Server) passToPort(c *gin.Context) error {
	prefix, path, err := splitPath(c.Request.URL, portSegments)
	if err != nil {
		return err
	}
	if c.Request.Method == http.MethodPost && path == linkName {
		return s.linkThisPort(c)
	}
	port, err := s.Service.Port(c.Request.Context(), rest.Tenant(c), c.Param("id"), c.Param("port"))
	if err != nil {
		return err
	}
	hide := func(r *http.Request) {
		r.Header.Del("Authorization") // it is for the farm
		r.Header.Del(asIsHeader)
		s.hideKeys(r)
	}
	s.servePort(c, port, View{Path: path, Prefix: prefix, AsIs: strings.EqualFold(c.GetHeader(asIsHeader), "off"), Hide: hide})
	return nil
}

// servePort passes a request on.
func (s *Server) servePort(c *gin.Context, port *service.Port, v View) {
	_ = http.NewResponseController(c.Writer).EnableFullDuplex() // a server may answer before it has the whole body
	if c.Request.Body != nil && c.Request.Body != http.NoBody {
		c.Request.Body = readCloser{rest.Body(c), c.Request.Body}
	}
	v.Answered = func() { rest.Foreign(c) }
	v.Fail = func(err error) { s.refuse(c, portError(c.Request.Context(), port.Number, err)) }
	s.proxy.Serve(c.Writer, c.Request, Target{Key: port.Key, Port: port.Number, Dial: port.Dial}, v)
}

// portError says of an error that it is the sandbox's: 502.
func portError(ctx context.Context, port int, err error) error {
	if ctx.Err() != nil {
		return err // the caller has left
	}
	_, coded := errors.AsType[*farm.Error](err)
	switch {
	case !coded:
		return rest.Refusef(http.StatusBadGateway, farm.CodeUnavailable, "The server on port %d of the sandbox did not answer in HTTP: it closed the connection, or speaks another protocol.", port)
	case farm.CodeOf(err) == farm.CodeNotFound:
		return rest.Refusef(http.StatusBadGateway, farm.CodeUnavailable, "%s", farm.MessageOf(err))
	default:
		return err
	}
}

type readCloser struct {
	io.Reader
	io.Closer
}

// hideKeys removes the farm's keys and tokens from a request to a server in a sandbox, wherever its sender has put them: in a header, alone or
// with a scheme, or in the query. Who has a key may do everything that its tenant may.
func (s *Server) hideKeys(r *http.Request) {
	ctx := r.Context()
	_ = s.Keys.StillOpen(ctx) // it looks at the keys, if it did not just now
	r.Header.Del("X-Api-Key")
	e2b.HideHeaders(r.Header)
	size := len(r.URL.RawQuery)
	for _, values := range r.Header {
		for _, value := range values {
			size += len(value)
		}
	}
	if leave, err := budget.Core(ctx, size*lookFactor); err == nil { // of a request whose caller has left the keys are hidden, too
		defer leave()
	}
	secret := map[string]bool{}
	holds := func(text string) bool {
		return slices.ContainsFunc(parts(text), func(part string) bool {
			if _, ok := secret[part]; !ok {
				secret[part] = s.Keys.Known(part) || s.E2B.IsToken(ctx, part)
			}
			return secret[part]
		})
	}
	for name, values := range r.Header {
		if slices.ContainsFunc(values, holds) {
			delete(r.Header, name)
		}
	}
	pairs := strings.Split(r.URL.RawQuery, "&")
	r.URL.RawQuery = strings.Join(slices.DeleteFunc(pairs, holds), "&")
}

// madeKey is a key that the farm made, alone or in the form of E2B's.
var madeKey = regexp.MustCompile("(" + service.KeyPrefix + "|" + wire.E2BPrefix + ")[0-9a-f]+")

// parts lists what may be a key in a header or a parameter, escaped or not. A key of the settings may have any characters: it is all of the
// text, or stands behind white space, an equals sign or a colon. Others are what lies between characters that they do not have.
func parts(text string) (list []string) {
	for range maxEscapes {
		list = append(list, text)
		list = append(list, madeKey.FindAllString(text, -1)...)
		list = append(list, strings.FieldsFunc(text, separates)...)
		for _, field := range strings.Fields(text) {
			end := len(strings.TrimRight(field, ",;")) // of a list, or of cookies; a key may end in one, too
			for _, part := range slices.Compact([]string{field[:end], field[:min(end+1, len(field))], field}) {
				list = append(list, part)
				if at := strings.IndexAny(part, "=:"); at >= 0 {
					list = append(list, part[at+1:])
				}
			}
		}
		user, password, _ := (&http.Request{Header: http.Header{"Authorization": {text}}}).BasicAuth() // in any header
		list = append(list, user, password)
		plain, err := url.QueryUnescape(text)
		if err != nil || plain == text {
			break
		}
		text = plain
	}
	return list
}

// lookFactor is how much more it costs to look for keys in a header, which may be of parts of one character, than to decode as many bytes of JSON.
const lookFactor = 16

// maxEscapes is how often a key is looked for in what was escaped, the text itself included: an address may be within an address.
const maxEscapes = 3

// separates reports whether a character stands between a key and what is written beside it in a header or a parameter: those of keys and tokens
// do not.
func separates(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_.~+", r)
}
