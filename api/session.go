package api

import (
	"crypto/sha256"
	"net/http"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxSessionBytes bounds the body of a log-in.
const maxSessionBytes = 4 << 10

// sessionTimeout bounds how long that body may take to arrive.
const sessionTimeout = 10 * time.Second

// sessionRequest is the body of POST /session.
type sessionRequest struct {
	Key  string `json:"key" required:"true"`
	Path string `json:"path"`
}

// sessionState says who a browser is.
type sessionState struct {
	LoggedIn bool         `json:"logged_in"` // false: a key is needed
	KeyEnded bool         `json:"key_ended"` // the browser is not logged in any more: its key was revoked or has expired
	Keyless  bool         `json:"keyless"`   // the farm has no keys
	Tenant   string       `json:"tenant"`
	KeyID    string       `json:"key_id"`
	Scopes   []farm.Scope `json:"scopes"`
	Version  string       `json:"version"`

	Data      string `json:"data,omitempty"` // directory that commands on the farm's host must name; empty: none, or the caller is no operator
	Allowlist bool   `json:"allowlist"`      // sandboxes may have the network allowlist: the setting egress.allow names hosts
}

func (s *Server) stateOf(caller access.Caller, in bool) sessionState {
	state := sessionState{
		LoggedIn: in, Keyless: in && caller.KeyID == "", Tenant: caller.Tenant, KeyID: caller.KeyID, Scopes: append([]farm.Scope{}, caller.Scopes...), Version: s.version,
		Allowlist: in && len(s.cfg.Allow) > 0,
	}
	if slices.Contains(state.Scopes, farm.ScopeAdmin) {
		state.Data = s.data
	}
	return state
}

// showSession says who the browser is. It is no error not to be logged in.
func (s *Server) showSession(c *gin.Context) error {
	err := s.authenticate(c, true)
	if err != nil && farm.CodeOf(err) != farm.CodeUnauthorized {
		return err
	}
	state := s.stateOf(rest.Caller(c), err == nil)
	state.KeyEnded = err != nil && bySession(c)
	return rest.Reply(c, http.StatusOK, state)
}

// openSession exchanges a key for a cookie. Where the farm has no keys, none is needed.
func (s *Server) openSession(c *gin.Context) error {
	if !access.SameOrigin(c.Request) {
		return errForeignPage()
	}
	var r sessionRequest
	rest.Within(c, sessionTimeout)
	body, err := rest.Bind(c, maxSessionBytes, &r)
	if err != nil {
		return err
	}
	if len(body.Problems) > 0 {
		return farm.Invalidf("The body must be an object with key and path.")
	}
	caller, err := s.keys.FindSum(c.Request.Context(), sha256.Sum256([]byte(r.Key)))
	if err != nil {
		s.audit.add(c.Request.Context(), s.sessionEntry(c, caller, http.StatusUnauthorized))
		if farm.CodeOf(err) == farm.CodeUnauthorized {
			return farm.Errorf(farm.CodeUnauthorized, "This is not a valid API key of this farm.")
		}
		return err
	}
	if caller.KeyID != "" {
		leave, err := s.gate.Enter(c.Request.Context(), caller.Tenant, rest.RequestID(c), c.Writer.Header())
		if err != nil {
			return err
		}
		defer leave()
		if r.Path == "" {
			r.Path = "/"
		}
		cookie, err := s.sessions.Open(c.Request.Context(), c.Request, sha256.Sum256([]byte(r.Key)), r.Path)
		if err != nil {
			return err
		}
		http.SetCookie(c.Writer, cookie)
		s.audit.add(c.Request.Context(), s.sessionEntry(c, caller, http.StatusOK))
	}
	return rest.Reply(c, http.StatusOK, s.stateOf(caller, true))
}

func (s *Server) sessionEntry(c *gin.Context, caller access.Caller, status int) farm.AuditEntry {
	return farm.AuditEntry{Tenant: caller.Tenant, KeyID: caller.KeyID, Route: "POST /session", From: c.RemoteIP(), Status: status, RequestID: rest.RequestID(c)}
}

// closeSession ends the session and removes the cookie.
func (s *Server) closeSession(c *gin.Context) error {
	if !access.SameOrigin(c.Request) {
		return errForeignPage()
	}
	if one, err := s.sessions.Read(c.Request.Context(), c.Request); err == nil && one != nil {
		if caller, err := s.keys.FindSum(c.Request.Context(), one.Sum); err == nil {
			s.actFor(c, caller, "")
		}
	}
	gone, err := s.sessions.Close(c.Request.Context(), c.Request, c.Query("path"))
	if err != nil {
		return err
	}
	http.SetCookie(c.Writer, gone)
	return rest.Reply(c, http.StatusOK, struct{}{})
}

func errForeignPage() error {
	return rest.Refusef(http.StatusForbidden, farm.CodeUnauthorized, "Only the dashboard's own pages may use its session. Programs send a key.")
}

// authenticate finds out who the caller is: by the key of the request, or, where sessions count, by the session of its browser. A session that
// has ended counts as none.
func (s *Server) authenticate(c *gin.Context, sessions bool) error {
	if !sessions || c.GetHeader("Authorization") != "" || c.GetHeader("X-API-Key") != "" || rest.Caller(c).KeyID != "" {
		return rest.Authenticate(c, s.keys)
	}
	one, err := s.sessions.Read(c.Request.Context(), c.Request)
	if err != nil {
		return err
	}
	if one == nil {
		return rest.Authenticate(c, s.keys)
	}
	if !access.SameOrigin(c.Request) {
		return errForeignPage()
	}
	c.Set(bySessionKey, true) // also of a key that has ended
	caller, err := s.keys.FindSum(c.Request.Context(), one.Sum)
	if err != nil {
		return err
	}
	rest.ActFor(c, caller.By(one))
	return nil
}

const bySessionKey = "sandfarm.by_session"

// bySession reports whether the session of a browser has opened a route, which means that a page of this origin calls, or would have if its key had
// not ended.
func bySession(c *gin.Context) bool { return c.GetBool(bySessionKey) }
