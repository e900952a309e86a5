package api

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/coder/websocket"
	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/e2b"
	"github.com/sandfarm/sandfarm/api/guard"
	"github.com/sandfarm/sandfarm/api/ports"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// asIsHeader of a request to a port leaves the paths of redirects and cookies as the server sends them.
const asIsHeader = "Sandfarm-Rewrite"

// portMethods are the methods that are passed on to servers in sandboxes.
var portMethods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions}

func (s *Server) portRoutes() []rest.Route {
	const one = "/v1/sandboxes/{id}/ports/{port}"
	var out []rest.Route
	for _, method := range portMethods {
		out = append(out,
			rest.Route{
				Method: method, Path: one + "/{path}", Tag: "Ports", Summary: "Send a request to a server in the sandbox",
				Detail: "Every method, with WebSocket and streams both ways, to a port of the sandbox's loopback. The server gets the path after the port, its own name as Host, and X-Forwarded-*. Its redirects and cookies lead back here, unless Sandfarm-Rewrite is off. It does not get the farm's key. POST …/ports/{port}/link is the farm's own: …/port-links for this port.",
				Scope:  farm.ScopeRun, Stream: true, KeyOnly: true, Hidden: method != http.MethodGet,
				Answers: []rest.Answer{{Status: http.StatusOK, Doc: "what the server answers, with its status", Media: "*/*"}},
				Handler: s.passToPort, Refuse: s.failPort,
			},
			rest.Route{Method: method, Path: one, Scope: farm.ScopeRun, Stream: true, KeyOnly: true, Hidden: true, Handler: addSlash, Refuse: s.failPort},
		)
	}
	return out
}

// addSlash leads to the root of a port, so that the links of its page are below it.
func addSlash(c *gin.Context) error {
	to := c.Request.URL.EscapedPath() + "/"
	if c.Request.URL.RawQuery != "" {
		to += "?" + c.Request.URL.RawQuery
	}
	c.Redirect(http.StatusPermanentRedirect, to)
	return nil
}

// passToPort passes a request of a caller with a key on to a port.
func (s *Server) passToPort(c *gin.Context) error {
	prefix, path, err := splitPath(c.Request.URL, portSegments)
	if err != nil {
		return err
	}
	if c.Request.Method == http.MethodPost && path == linkName {
		return s.linkThisPort(c)
	}
	port, err := s.service.Port(c.Request.Context(), rest.Tenant(c), c.Param("id"), c.Param("port"))
	if err != nil {
		return err
	}
	hide := func(r *http.Request) {
		r.Header.Del("Authorization") // it is for the farm
		r.Header.Del(asIsHeader)
		s.hideKeys(r)
	}
	s.servePort(c, port, ports.View{Path: path, Prefix: prefix, AsIs: strings.EqualFold(c.GetHeader(asIsHeader), "off"), Hide: hide})
	return nil
}

// hideKeys removes the farm's keys and tokens from a request to a server in a sandbox, wherever its sender has put them: in a header, alone or
// with a scheme, or in the query. Who has a key may do everything that its tenant may.
func (s *Server) hideKeys(r *http.Request) {
	ctx := r.Context()
	_ = s.keys.StillOpen(ctx) // it looks at the keys, if it did not just now
	r.Header.Del("X-Api-Key")
	e2b.HideHeaders(r.Header)
	holds := func(text string) bool {
		return slices.ContainsFunc(parts(text), func(part string) bool { return s.keys.Known(part) || s.e2b.IsToken(ctx, part) })
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
			list = append(list, field)
			if at := strings.IndexAny(field, "=:"); at >= 0 {
				list = append(list, field[at+1:])
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

// maxEscapes is how often a key is looked for in what was escaped, the text itself included: an address may be within an address.
const maxEscapes = 3

// separates reports whether a character stands between a key and what is written beside it in a header or a parameter: those of keys and tokens
// do not.
func separates(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_.~+", r)
}

// portSegments are the segments of a path up to the number of a port, from an empty one on.
const portSegments = 6

// splitPath splits a path after some segments, as it was escaped. The second part begins with a slash.
func splitPath(u *url.URL, segments int) (prefix, path string, err error) {
	parts := strings.SplitN(u.EscapedPath(), "/", segments+1)
	if len(parts) <= segments || strings.Contains(strings.ToLower(strings.Join(parts[:segments], "/")), "%2f") { // an escaped slash ends a segment for the router
		return "", "", rest.BadRequestf("the path is not well escaped")
	}
	return strings.Join(parts[:segments], "/"), "/" + parts[segments], nil
}

// servePort passes a request on.
func (s *Server) servePort(c *gin.Context, port *service.Port, v ports.View) {
	_ = http.NewResponseController(c.Writer).EnableFullDuplex() // a server may answer before it has the whole body
	if c.Request.Body != nil && c.Request.Body != http.NoBody {
		c.Request.Body = readCloser{rest.Body(c), c.Request.Body}
	}
	v.Fail = func(err error) { s.failPort(c, portError(c.Request.Context(), port.Number, err)) }
	s.ports.Serve(portWriter{c.Writer, rest.NewDeadlineWriter(c)}, c.Request, ports.Target{Key: port.Key, Port: port.Number, Dial: port.Dial}, v)
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

// portWriter writes an answer, each piece within the stall timeout.
type portWriter struct {
	gin.ResponseWriter
	paced *rest.DeadlineWriter
}

// Write implements io.Writer.
func (w portWriter) Write(p []byte) (int, error) { return w.paced.Write(p) }

// FlushError sends what is buffered.
func (w portWriter) FlushError() error { return w.paced.Flush() }

// failPort answers with a page if a browser asks for one, and with a problem otherwise.
func (s *Server) failPort(c *gin.Context, err error) {
	if !ports.WantsPage(c.Request) {
		s.fail(c, err)
		return
	}
	rest.FailAs(c, s.log, err, func(p wire.Problem) { _ = ports.WritePage(c.Writer, p.Status, p.Detail, p.RequestID) })
}

func (s *Server) forwardRoutes() []rest.Route {
	return []rest.Route{{
		Method: "GET", Path: "/v1/sandboxes/{id}/tcp/{port}", Tag: "Ports", Summary: "Connect to a port by a WebSocket",
		Detail: "Binary messages of up to 64 KiB carry the bytes of one TCP connection; an empty one ends a direction. For protocols that are not HTTP.",
		Scope:  farm.ScopeRun, Stream: true, KeyOnly: true, Answers: []rest.Answer{{Status: http.StatusSwitchingProtocols, Doc: "the WebSocket"}}, Handler: s.forwardPort,
	}}
}

// forwardPort connects a WebSocket to a port. As those of attachProcess, it is not for pages of other origins.
func (s *Server) forwardPort(c *gin.Context) error {
	if own := (guard.Guard{Hosts: s.cfg.TrustedHosts}); !own.Origin(c.Request) {
		return rest.Refusef(http.StatusForbidden, farm.CodeUnauthorized, "Pages of other origins may not connect to ports.")
	}
	ctx := c.Request.Context()
	port, err := s.service.Port(ctx, rest.Tenant(c), c.Param("id"), c.Param("port"))
	if err != nil {
		return err
	}
	if !upgrades(c.Request) {
		c.Header("Upgrade", "websocket")
		return rest.Refusef(http.StatusUpgradeRequired, farm.CodeInvalid, "This address serves WebSockets only. For HTTP use %s.", "…/ports/{port}/")
	}
	conn, err := port.Dial(ctx)
	if err != nil {
		return portError(ctx, port.Number, err)
	}
	defer func() { _ = conn.Close() }()
	ws, err := websocket.Accept(c.Writer, c.Request, nil)
	if err != nil {
		return nil // it has answered
	}
	defer func() { _ = ws.CloseNow() }()
	s.attached.Add(1) // the HTTP server does not wait for connections that it has given away
	defer s.attached.Done()
	ws.SetReadLimit(wire.MaxForwardBytes)
	ctx, done := context.WithCancel(ctx)
	defer done()
	go func() {
		select {
		case <-s.closing:
			done()
		case <-ctx.Done():
		}
	}()
	caller := &forwarded{ws: ws, conn: conn, ended: make(chan error, 1)}
	go caller.read(ctx)
	go caller.ping(ctx, s.cfg.Heartbeat, s.cfg.StallTimeout)
	err = forwardOut(ctx, ws, conn, s.cfg.StallTimeout)
	if err == nil {
		err = <-caller.ended
	}
	status := websocket.StatusNormalClosure
	if err != nil {
		status = websocket.StatusInternalError
	}
	_ = ws.Close(status, "")
	return nil
}

// forwarded is the caller's direction of a connection.
type forwarded struct {
	ws      *websocket.Conn
	conn    net.Conn
	ended   chan error  // gets the end of the direction
	writing atomic.Bool // the sandbox takes its time, and meanwhile answers to pings are not seen
}

// read passes messages on until an empty one has ended the direction, and continues reading then: pings are answered, and the caller may leave.
func (f *forwarded) read(ctx context.Context) {
	err := f.pass(ctx)
	if err != nil {
		_ = f.conn.Close() // the caller is gone, or at fault
	}
	f.ended <- err
	if err == nil {
		_, _, _ = f.ws.Read(ctx)
		_ = f.conn.Close()
	}
}

func (f *forwarded) pass(ctx context.Context) error {
	for {
		kind, data, err := f.ws.Read(ctx)
		if err != nil {
			return err
		}
		if kind != websocket.MessageBinary {
			return errors.New("a message is not binary")
		}
		if len(data) == 0 {
			return f.conn.(interface{ CloseWrite() error }).CloseWrite() //nolint:errcheck // all connections to ports have it
		}
		f.writing.Store(true)
		_, err = f.conn.Write(data)
		f.writing.Store(false)
		if err != nil {
			return err
		}
	}
}

// ping closes the connection of a caller who is gone without a word.
func (f *forwarded) ping(ctx context.Context, every, stall time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		bounded, done := context.WithTimeout(ctx, stall)
		err := f.ws.Ping(bounded)
		done()
		if err != nil && !f.writing.Load() {
			_ = f.conn.Close()
			return
		}
	}
}

// forwardOut sends what a connection carries, and an empty message at its end.
func forwardOut(ctx context.Context, ws *websocket.Conn, conn net.Conn, stall time.Duration) error {
	buf := make([]byte, wire.MaxForwardBytes/2)
	for {
		n, err := conn.Read(buf)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if n > 0 || err != nil {
			bounded, done := context.WithTimeout(ctx, stall)
			failed := ws.Write(bounded, websocket.MessageBinary, buf[:n])
			done()
			if failed != nil || err != nil {
				return failed
			}
		}
	}
}
