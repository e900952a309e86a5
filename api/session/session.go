// Package session keeps a browser logged in: a key is shown once, and a cookie says afterwards that this browser has shown it.
//
// The cookie is signed by the farm and holds the hash of the key and a time, never the key. It ends with the key, or after Life. No script can
// read it (HttpOnly) and no other site can make a browser send it (SameSite=Strict). Browsers do not tell the ports of a host apart, nor, as a
// site, the hosts below a domain: so a request counts only if it comes from a page of this very origin (SameOrigin).
package session

import (
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/ports"
	"github.com/sandfarm/sandfarm/api/signed"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

const (
	// Life is how long a browser stays logged in.
	Life = 12 * time.Hour
	// Cookie is the name of the cookie. No sandbox sees or sets one that begins so.
	Cookie = ports.CookiePrefix + "_session"
	// maxPath bounds the path of a cookie.
	maxPath = 200
	// version begins what is signed.
	version = "session1"
)

// cookiePath is what a cookie's path may be made of: what needs no escape and ends no attribute.
var cookiePath = regexp.MustCompile(`^/([A-Za-z0-9._~-]+/)*$`)

// Sessions opens sessions and reads them. It is safe for concurrent use.
type Sessions struct {
	signer *signed.Signer
	now    func() time.Time
}

// New makes Sessions.
func New(s *signed.Signer, now func() time.Time) *Sessions { return &Sessions{signer: s, now: now} }

// Open makes the cookie of who has shown the key with a hash. path is where the farm's pages begin, as the browser sees them, such as "/" or
// "/farm/". CodeInvalid refuses another form.
func (s *Sessions) Open(ctx context.Context, r *http.Request, sum store.KeySum, path string) (*http.Cookie, error) {
	if len(path) > maxPath || !cookiePath.MatchString(path) {
		return nil, farm.Invalidf("path must begin and end with a slash, and have only letters, digits, dots, dashes and underscores between slashes, at most %d in all.", maxPath)
	}
	until := s.now().Add(Life)
	token, err := s.signer.Seal(ctx, version, strconv.FormatInt(until.Unix(), 10), hex.EncodeToString(sum[:]))
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what failed
	}
	c := cookie(r, path)
	c.Value, c.MaxAge = token, int(Life/time.Second)
	return c, nil
}

// Close makes a cookie that removes the one of Open. A path that Open refuses is taken as "/".
func Close(r *http.Request, path string) *http.Cookie {
	if len(path) > maxPath || !cookiePath.MatchString(path) {
		path = "/"
	}
	c := cookie(r, path)
	c.MaxAge = -1
	return c
}

func cookie(r *http.Request, path string) *http.Cookie {
	return &http.Cookie{Name: Cookie, Path: path, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: ports.Scheme(r) == "https"}
}

// Read returns the hash of the key that the request's browser has shown. ok is false without a cookie, and for one that is not valid or too old.
func (s *Sessions) Read(ctx context.Context, r *http.Request) (sum store.KeySum, ok bool, err error) {
	c, err := r.Cookie(Cookie)
	if err != nil {
		return sum, false, nil //nolint:nilerr // there is none
	}
	parts, err := s.signer.Open(ctx, c.Value)
	if errors.Is(err, signed.ErrToken) {
		return sum, false, nil
	}
	if err != nil {
		return sum, false, err //nolint:wrapcheck // it says what failed
	}
	if len(parts) != 3 || parts[0] != version || len(parts[2]) != hex.EncodedLen(len(sum)) {
		return sum, false, nil // another kind of token
	}
	until, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || !s.now().Before(time.Unix(until, 0)) {
		return sum, false, nil //nolint:nilerr // it is too old
	}
	_, err = hex.Decode(sum[:], []byte(parts[2]))
	return sum, err == nil, nil
}

// SameOrigin reports whether a request comes from a page of this origin, or was typed by the user. Browsers say so on https and on loopback.
// Where they do not, Origin must name the host that is asked; a GET without one, which browsers send within an origin, counts: its answer can
// be read by nobody else.
func SameOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" {
		return site == "same-origin" || site == "none"
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Header.Get("Upgrade") == ""
	}
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && strings.EqualFold(u.Host, r.Host)
}
