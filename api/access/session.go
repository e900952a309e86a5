package access

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandfarm/sandfarm/api/guard"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// CookiePrefix begins the names of the farm's own cookies, in any case. No sandbox sees one or sets one.
const CookiePrefix = "sandfarm"

const (
	// SessionLife is how long a browser stays logged in.
	SessionLife = 12 * time.Hour
	// Cookie is the name of the cookie. No sandbox sees or sets one that begins so.
	Cookie = CookiePrefix + "_session"
	// SecureCookie is its name where the browser came by https: no other host can set it, and its path is "/".
	SecureCookie = "__Host-" + Cookie
	// logIns is how often a key may log in at once, and logInEvery how often in the long run: each session that is ended stays stored for the
	// rest of its life, some 200 bytes.
	logIns     = 60
	logInEvery = 6 * time.Second
	// maxPath bounds the path of a cookie.
	maxPath = 200
	// version begins what is signed.
	version = "session2"
)

// cookiePath is what a cookie's path may be made of: what needs no escape and ends no attribute.
var cookiePath = regexp.MustCompile(`^/([A-Za-z0-9._~-]+/)*$`)

// EndedSessions keeps the ids of sessions that were ended.
type EndedSessions interface {
	EndSession(ctx context.Context, id string, keep time.Duration) error
	SessionEnded(ctx context.Context, id string) (bool, error)
}

// Sessions keeps a browser logged in: a key is shown once, and a cookie says afterwards that this browser has shown it. It is safe for concurrent
// use.
//
// The cookie is signed by the farm and holds the hash of the key, a time and an id, never the key. It ends with the key, after SessionLife, or when its
// browser logs out: the ids of ended sessions are stored until their time is over. No script can read it (HttpOnly), no other site can make a
// browser send it (SameSite=Strict), and over TLS no other host can set it (__Host-). Browsers do not tell the ports of a host apart, nor, as a site,
// the hosts below a domain: so a request counts only if it comes from a page of this very origin (SameOrigin), and a wrong cookie beside the right
// one changes nothing.
type Sessions struct {
	signer *Signer
	store  EndedSessions
	now    func() time.Time

	mu sync.Mutex
	of map[store.KeySum]*rate.Limiter // log-ins of the keys that have logged in
}

// NewSessions makes Sessions.
func NewSessions(s *Signer, ended EndedSessions, now func() time.Time) *Sessions {
	return &Sessions{signer: s, store: ended, now: now, of: map[store.KeySum]*rate.Limiter{}}
}

// Open makes the cookie of who has shown the key with a hash. path is where the farm's pages begin, as the browser sees them, such as "/" or
// "/farm/". CodeInvalid refuses another form, CodeExhausted a key that logs in too often.
func (s *Sessions) Open(ctx context.Context, r *http.Request, sum store.KeySum, path string) (*http.Cookie, error) {
	if len(path) > maxPath || !cookiePath.MatchString(path) {
		return nil, farm.Invalidf("path must begin and end with a slash, and have only letters, digits, dots, dashes and underscores between slashes, at most %d in all.", maxPath)
	}
	if !s.allows(sum) {
		return nil, farm.Errorf(farm.CodeExhausted, "This key has logged in %d times in a short while. Stay logged in, or try again in some seconds.", logIns)
	}
	until := s.now().Add(SessionLife)
	token, err := s.signer.Seal(ctx, version, strconv.FormatInt(until.Unix(), 10), hex.EncodeToString(sum[:]), rand.Text())
	if err != nil {
		return nil, err
	}
	c := cookie(r, path)
	c.Value, c.MaxAge = token, int(SessionLife/time.Second)
	return c, nil
}

// allows counts a log-in of a key, unless there were too many.
func (s *Sessions) allows(sum store.KeySum) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.of[sum]
	if l == nil {
		now := s.now()
		maps.DeleteFunc(s.of, func(_ store.KeySum, l *rate.Limiter) bool { return l.TokensAt(now) >= logIns }) // as good as new
		l = rate.NewLimiter(rate.Every(logInEvery), logIns)
		s.of[sum] = l
	}
	return l.AllowN(s.now(), 1)
}

// Close ends the sessions of a request's browser and makes a cookie that removes the one of Open. A path that Open refuses is taken as "/".
func (s *Sessions) Close(ctx context.Context, r *http.Request, path string) (*http.Cookie, error) {
	for _, value := range cookies(r) {
		one, err := s.parse(ctx, value)
		if err == nil && one != nil {
			err = s.store.EndSession(ctx, one.id, SessionLife)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(path) > maxPath || !cookiePath.MatchString(path) {
		path = "/"
	}
	c := cookie(r, path)
	c.MaxAge = -1
	return c, nil
}

func cookie(r *http.Request, path string) *http.Cookie {
	c := &http.Cookie{Name: name(r), Path: path, HttpOnly: true, SameSite: http.SameSiteStrictMode}
	if c.Name == SecureCookie {
		c.Path, c.Secure = "/", true
	}
	return c
}

// name is the name of the cookie for the browser of a request.
func name(r *http.Request) string {
	if guard.Scheme(r) == "https" {
		return SecureCookie
	}
	return Cookie
}

// maxCookies is how many cookies of a request are looked at: each may cost a call of Redis, before anybody has shown a key. Browsers send one, and one for each
// path and domain where another page has set it.
const maxCookies = 8

// cookies are the values of the first cookies of a request, each once.
func cookies(r *http.Request) []string {
	var values []string
	for _, c := range r.CookiesNamed(name(r)) {
		if !slices.Contains(values, c.Value) && len(values) < maxCookies {
			values = append(values, c.Value)
		}
	}
	return values
}

// Session is a browser that is logged in.
type Session struct {
	Sum   store.KeySum // of the key that it has shown
	id    string
	until time.Time
	of    *Sessions
}

// Read returns the session of a request's browser; nil if no cookie is one of a session that lasts.
func (s *Sessions) Read(ctx context.Context, r *http.Request) (*Session, error) {
	for _, value := range cookies(r) {
		one, err := s.parse(ctx, value)
		if err != nil {
			return nil, err
		}
		if one == nil {
			continue
		}
		ended, err := s.store.SessionEnded(ctx, one.id)
		if err != nil {
			return nil, err
		}
		if !ended {
			return one, nil
		}
	}
	return nil, nil
}

// over reports whether a session has ended, as far as is known.
func (s *Session) over(ctx context.Context) bool {
	if !s.of.now().Before(s.until) {
		return true
	}
	ended, err := s.of.store.SessionEnded(ctx, s.id)
	return err == nil && ended
}

// parse reads a cookie. It returns nil for one that is not valid or too old.
func (s *Sessions) parse(ctx context.Context, value string) (*Session, error) {
	parts, err := s.signer.Open(ctx, value)
	if errors.Is(err, ErrToken) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	one := Session{of: s}
	if len(parts) != 4 || parts[0] != version || len(parts[2]) != hex.EncodedLen(len(one.Sum)) {
		return nil, nil // another kind of token
	}
	until, err := strconv.ParseInt(parts[1], 10, 64)
	if one.until = time.Unix(until, 0); err != nil || !s.now().Before(one.until) {
		return nil, nil // it is too old
	}
	_, err = hex.Decode(one.Sum[:], []byte(parts[2]))
	one.id = parts[3]
	return &one, err
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
