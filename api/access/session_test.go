package access_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// key is a store with a key for signatures.
type key string

func (k key) LinkKey(context.Context) ([]byte, error) {
	sum := sha256.Sum256([]byte(k))
	return sum[:], nil
}

// clock is a time that a test sets.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

// ended are the sessions that were ended.
type ended map[string]time.Duration

func (e ended) EndSession(_ context.Context, id string, keep time.Duration) error {
	e[id] = keep
	return nil
}

func (e ended) SessionEnded(_ context.Context, id string) (bool, error) {
	_, ok := e[id]
	return ok, nil
}

func sessions(store key) (*access.Sessions, *clock) {
	c := &clock{at: time.Unix(1_800_000_000, 0)}
	return access.NewSessions(access.NewSigner(store, c.now), ended{}, c.now), c
}

func read(t *testing.T, s *access.Sessions, value string) *access.Session {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/jobs", nil)
	r.AddCookie(&http.Cookie{Name: access.Cookie, Value: value})
	got, err := s.Read(t.Context(), r)
	testbed.Must(t, err)
	return got
}

func TestASessionLastsForItsLife(t *testing.T) {
	t.Parallel()
	s, c := sessions("a")
	mine := sha256.Sum256([]byte("my key"))
	cookie, err := s.Open(t.Context(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/session", nil), mine, "/")
	testbed.Must(t, err)
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || cookie.MaxAge != int(access.SessionLife/time.Second) {
		t.Errorf("the cookie is %s", cookie)
	}
	for after, want := range map[time.Duration]bool{0: true, access.SessionLife - time.Second: true, access.SessionLife: false, access.SessionLife + time.Second: false} {
		c.at = time.Unix(1_800_000_000, 0).Add(after)
		got := read(t, s, cookie.Value)
		testbed.Check(t, (got != nil) == want && (got == nil || got.Sum == mine), "after %s the session is %+v", after, got)
	}
}

// Logging out ends the session, not only its cookie, and no other session of the same key.
func TestASessionEndsWhenItsBrowserLogsOut(t *testing.T) {
	t.Parallel()
	s, _ := sessions("a")
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/session", nil)
	var made [2]*http.Cookie
	for i := range made {
		var err error
		made[i], err = s.Open(t.Context(), r, sha256.Sum256([]byte("my key")), "/")
		testbed.Must(t, err)
	}
	out := httptest.NewRequestWithContext(t.Context(), http.MethodDelete, "/session", nil)
	out.AddCookie(&http.Cookie{Name: access.Cookie, Value: "wrong"})
	out.AddCookie(&http.Cookie{Name: access.Cookie, Value: made[0].Value})
	if gone, err := s.Close(t.Context(), out, "/"); err != nil || gone.MaxAge >= 0 {
		t.Errorf("log out: %v, %v", gone, err)
	}
	for i, want := range []bool{false, true} {
		testbed.Check(t, (read(t, s, made[i].Value) != nil) == want, "whether session %d counts is not %v", i, want)
	}
}

// Requests that a session has opened end with it, however long they last.
func TestHoldEndsWithTheSession(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*access.Sessions, *http.Request){
		"log-out": func(s *access.Sessions, r *http.Request) {
			_, err := s.Close(r.Context(), r, "/")
			testbed.Must(t, err)
		},
		"life": func(*access.Sessions, *http.Request) { time.Sleep(access.SessionLife) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := access.NewSessions(access.NewSigner(key("a"), time.Now), ended{}, time.Now)
				ring := access.NewKeys(newRecords(), access.KeysConfig{})
				defer ring.Close()
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
				cookie, err := s.Open(t.Context(), r, sha256.Sum256(nil), "/")
				testbed.Must(t, err)
				r.AddCookie(cookie)
				held, release := ring.Hold(t.Context(), access.FromSettings(farm.Key{Tenant: "acme"}).By(read(t, s, cookie.Value)))
				defer release()
				time.Sleep(time.Minute)
				testbed.Require(t, held.Err() == nil, "it ended early: %v", context.Cause(held))
				end(s, r)
				time.Sleep(2 * time.Second)
				synctest.Wait()
				testbed.Check(t, errors.Is(context.Cause(held), access.ErrEnded), "the request goes on: %v", context.Cause(held))
			})
		})
	}
}

// looked counts how often it is asked for ended sessions, which all are.
type looked struct {
	ended
	times int
}

func (l *looked) SessionEnded(context.Context, string) (bool, error) {
	l.times++
	return true, nil
}

// A request without a key, with 150 cookies, made as many calls of Redis.
func TestOfManyCookiesAFewAreLookedAt(t *testing.T) {
	t.Parallel()
	c := &clock{at: time.Unix(1_800_000_000, 0)}
	for same, want := range map[bool]int{true: 1, false: 8} {
		store := &looked{}
		s := access.NewSessions(access.NewSigner(key("a"), c.now), store, c.now)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/jobs", nil)
		var cookie *http.Cookie
		for i := range 20 {
			if i == 0 || !same {
				var err error
				cookie, err = s.Open(t.Context(), r, sha256.Sum256([]byte{byte(i)}), "/")
				testbed.Must(t, err)
			}
			r.AddCookie(&http.Cookie{Name: access.Cookie, Value: cookie.Value})
		}
		got, err := s.Read(t.Context(), r)
		testbed.Check(t, got == nil && err == nil && store.times == want, "of 20 cookies (the same: %t) %d are looked at, %v, %v", same, store.times, got, err)
	}
}

// Another host of the same site can set a cookie of the same name, which browsers may send first.
func TestAWrongCookieHidesNoRightOne(t *testing.T) {
	t.Parallel()
	s, _ := sessions("a")
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/session", nil)
	mine, err := s.Open(t.Context(), r, sha256.Sum256([]byte("my key")), "/")
	testbed.Must(t, err)
	for _, values := range [][]string{{"wrong", mine.Value}, {mine.Value, "wrong"}, {"", "a.b", mine.Value}} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/jobs", nil)
		for _, value := range values {
			r.AddCookie(&http.Cookie{Name: access.Cookie, Value: value})
		}
		got, err := s.Read(t.Context(), r)
		testbed.Check(t, err == nil && got != nil && got.Sum == sha256.Sum256([]byte("my key")), "%q: %+v, %v", values, got, err)
	}
}

func TestACookieOfAnotherMakingCountsForNothing(t *testing.T) {
	t.Parallel()
	s, _ := sessions("a")
	foreign, _ := sessions("b")
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/session", nil)
	theirs, err := foreign.Open(t.Context(), r, sha256.Sum256(nil), "/")
	testbed.Must(t, err)
	mine, err := s.Open(t.Context(), r, sha256.Sum256(nil), "/")
	testbed.Must(t, err)
	link, err := access.NewSigner(key("a"), time.Now).Seal(t.Context(), "port1", "acme", "sbx", "80", "1900000000")
	testbed.Must(t, err)
	payload, code, _ := strings.Cut(mine.Value, ".")
	plain, err := base64.RawURLEncoding.DecodeString(payload)
	testbed.Must(t, err)
	plain[len(plain)-1] ^= 1
	for name, value := range map[string]string{
		"OfAnotherFarm": theirs.Value, "ALinkToAPort": link, "Empty": "", "NoDot": "abc", "TooLong": strings.Repeat("a", 10_000),
		"OfAnotherKey": base64.RawURLEncoding.EncodeToString(plain) + "." + code,
	} {
		testbed.Check(t, read(t, s, value) == nil, "%s counts", name)
	}
	testbed.Check(t, read(t, s, mine.Value) != nil, "the real one does not count")
}

func TestThePathOfACookieIsChecked(t *testing.T) {
	t.Parallel()
	s, _ := sessions("a")
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/session", nil)
	at := func(n int) string { return "/" + strings.Repeat("a", n-2) + "/" }
	for path, want := range map[string]bool{
		"/": true, "/farm/": true, "/a.b-c_d~/e/": true, at(199): true, at(200): true, at(201): false,
		"": false, "farm/": false, "/farm": false, "/;Domain=example.com/": false, "//": false, "/a b/": false, "/%41/": false,
	} {
		cookie, err := s.Open(t.Context(), r, sha256.Sum256(nil), path)
		if (err == nil) != want || err != nil && farm.CodeOf(err) != farm.CodeInvalid {
			t.Errorf("%q: %v", path, err)
		}
		if err == nil && cookie.Path != path {
			t.Errorf("%q became %q", path, cookie.Path)
		}
	}
}

func TestTheCookieIsSecureWhereTheCallerUsesTLS(t *testing.T) {
	t.Parallel()
	s, _ := sessions("a")
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/session", nil)
	r.Header.Set("X-Forwarded-Proto", "https")
	cookie, err := s.Open(t.Context(), r, sha256.Sum256(nil), "/")
	gone, worse := s.Close(t.Context(), r, "/farm/")
	if err != nil || worse != nil || !cookie.Secure || !gone.Secure || cookie.Name != "__Host-sandfarm_session" || gone.Name != cookie.Name || gone.Path != "/" {
		t.Errorf("the cookie is %v, removed by %v, %v, %v", cookie, gone, err, worse)
	}
	r.AddCookie(&http.Cookie{Name: access.Cookie, Value: cookie.Value}) // which another host could set
	got, err := s.Read(t.Context(), r)
	testbed.Check(t, err == nil && got == nil, "a cookie without the prefix counts: %+v, %v", got, err)
	r.AddCookie(&http.Cookie{Name: cookie.Name, Value: cookie.Value})
	got, err = s.Read(t.Context(), r)
	testbed.Check(t, err == nil && got != nil, "the cookie does not count: %v", err)
}

func TestSameOrigin(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		method string
		header map[string]string
		want   bool
	}{
		"OwnPage":              {"POST", map[string]string{"Sec-Fetch-Site": "same-origin", "Origin": "http://farm.example"}, true},
		"Typed":                {"GET", map[string]string{"Sec-Fetch-Site": "none"}, true},
		"AnotherPort":          {"GET", map[string]string{"Sec-Fetch-Site": "same-site"}, false},
		"AnotherSite":          {"POST", map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "http://farm.example"}, false},
		"OldBrowserGet":        {"GET", nil, true},
		"OldBrowserPost":       {"POST", nil, false},
		"OldBrowserOwnPage":    {"POST", map[string]string{"Origin": "http://FARM.example"}, true},
		"OldBrowserOther":      {"POST", map[string]string{"Origin": "http://farm.example:81"}, false},
		"OldBrowserNull":       {"DELETE", map[string]string{"Origin": "null"}, false},
		"OldBrowserOtherGet":   {"GET", map[string]string{"Origin": "http://evil.example"}, false},
		"WebSocket":            {"GET", map[string]string{"Upgrade": "websocket", "Origin": "https://farm.example"}, true},
		"WebSocketOther":       {"GET", map[string]string{"Upgrade": "websocket", "Origin": "https://evil.example"}, false},
		"WebSocketNoOrigin":    {"GET", map[string]string{"Upgrade": "websocket"}, false},
		"WebSocketAnotherPort": {"GET", map[string]string{"Upgrade": "websocket", "Origin": "http://farm.example:3000"}, false},
	} {
		r := httptest.NewRequestWithContext(t.Context(), c.method, "http://farm.example/v1/jobs", nil)
		for name, value := range c.header {
			r.Header.Set(name, value)
		}
		testbed.Diff(t, name, c.want, access.SameOrigin(r))
	}
}

// What is stored of sessions that were ended is bounded by how many there can be.
func TestAKeyLogsInSoOften(t *testing.T) {
	t.Parallel()
	s, c := sessions("a")
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/session", nil)
	mine, other := sha256.Sum256([]byte("my key")), sha256.Sum256([]byte("another"))
	for i := range 61 {
		if _, err := s.Open(t.Context(), r, mine, "/"); (err != nil) != (i == 60) || err != nil && farm.CodeOf(err) != farm.CodeExhausted {
			t.Errorf("log-in %d: %v", i+1, err)
		}
	}
	if _, err := s.Open(t.Context(), r, other, "/"); err != nil {
		t.Errorf("another key: %v", err)
	}
	c.at = c.at.Add(6 * time.Second)
	for i := range 2 {
		if _, err := s.Open(t.Context(), r, mine, "/"); (err != nil) != (i == 1) {
			t.Errorf("six seconds later, log-in %d: %v", i+1, err)
		}
	}
}

type keyStore struct {
	key []byte
	err error
}

func (s keyStore) LinkKey(context.Context) ([]byte, error) { return s.key, s.err }

func TestOnlyTheFarmsOwnTokensOpen(t *testing.T) {
	t.Parallel()
	s := access.NewSigner(keyStore{key: bytes.Repeat([]byte{1}, 32)}, time.Now)
	token, err := s.Seal(t.Context(), "kind1", "acme", "")
	testbed.Must(t, err)
	if parts, err := s.Open(t.Context(), token); err != nil || !slices.Equal(parts, []string{"kind1", "acme", ""}) {
		t.Errorf("%q, %v", parts, err)
	}
	other, err := access.NewSigner(keyStore{key: bytes.Repeat([]byte{2}, 32)}, time.Now).Seal(t.Context(), "kind1", "acme", "")
	testbed.Must(t, err)
	payload, code, _ := strings.Cut(token, ".")
	longer, err := s.Seal(t.Context(), strings.Repeat("x", 600))
	testbed.Must(t, err)
	for name, bad := range map[string]string{
		"empty": "", "of another farm": other, "cut": payload, "without a code": payload + ".",
		"with other words": "x" + payload + "." + code, "too long": longer,
	} {
		if _, err := s.Open(t.Context(), bad); !errors.Is(err, access.ErrToken) {
			t.Errorf("a token %s: %v", name, err)
		}
	}
}

func TestWithoutAKeyNothingOpens(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]keyStore{"away": {err: errors.New("away")}, "short": {key: []byte("short")}} {
		s := access.NewSigner(store, time.Now)
		if _, err := s.Seal(t.Context(), "a"); err == nil {
			t.Errorf("%s: sealed", name)
		}
		if _, err := s.Open(t.Context(), "YQ.YQ"); err == nil || errors.Is(err, access.ErrToken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// lateKey is a KeyStore that answers when it is told to.
type lateKey struct{ asked, answers chan error }

func (k lateKey) LinkKey(context.Context) ([]byte, error) {
	k.asked <- nil
	err := <-k.answers
	return bytes.Repeat([]byte{1}, 32), err
}

// While one caller reads the key anew, and where it cannot be read, the others have the one before: a Redis that hangs ends no link.
func TestTheKeyIsUsedWhileItCannotBeRead(t *testing.T) {
	t.Parallel()
	c := &clock{time.Unix(1_700_000_000, 0)}
	store := lateKey{make(chan error, 9), make(chan error, 9)}
	s := access.NewSigner(store, c.now)
	store.answers <- nil
	token, err := s.Seal(t.Context(), "a")
	testbed.Must(t, err)
	<-store.asked
	c.at = c.at.Add(time.Minute)
	_, err = s.Open(t.Context(), token)
	testbed.Must(t, err)
	c.at = c.at.Add(time.Nanosecond) // now it is read again
	reader := make(chan error)
	for _, answer := range []error{errors.New("away"), nil} {
		go func() {
			_, err := s.Open(t.Context(), token)
			reader <- err
		}()
		<-store.asked
		for range 3 {
			if _, err := s.Open(t.Context(), token); err != nil {
				t.Errorf("beside a caller who reads it: %v", err)
			}
		}
		store.answers <- answer
		if err := <-reader; err != nil {
			t.Errorf("the caller who reads it, answered with %v: %v", answer, err)
		}
	}
	_, err = s.Open(t.Context(), token) // it is as good as new
	testbed.Must(t, err)
	if len(store.asked) != 0 {
		t.Error("the key is read more often than it must be")
	}
}
