package faulttest

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// S3Link forwards requests to an object store, and can spoil them. Each way of spoiling stays until it is ended.
type S3Link struct {
	t     testing.TB
	proxy *httputil.ReverseProxy

	mu      sync.Mutex
	stops   []*S3Stop
	away    bool
	full    bool
	failing float64
	pace    int
	spoiled int
}

// slowPiece is how often a slow link lets a piece of a body pass.
const slowPiece = 100 * time.Millisecond

func newS3Link(t testing.TB, address string) *S3Link {
	t.Helper()
	l := &S3Link{t: t}
	to := &url.URL{Scheme: "http", Host: address}
	l.proxy = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host // part of the signature
		},
		FlushInterval:  -1,
		ModifyResponse: stopAfter,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }, // as the store: no answer
	}
	return l
}

// urlOf is the address at which a process has the store.
func (l *S3Link) urlOf(process string) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if stop := l.stopAt(process, r); stop != nil && stop.After {
			r = stop.remember(r)
		} else if stop != nil && !stop.Do([]string{r.URL.Path}) {
			panic(http.ErrAbortHandler) // the store has not got it
		}
		l.serve(w, r)
	}))
	l.t.Cleanup(server.Close)
	return server.URL
}

func (l *S3Link) serve(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	away, full, fails, pace := l.away, l.full && (r.Method == http.MethodPut || r.Method == http.MethodPost), rand.Float64() < l.failing, l.pace //nolint:gosec // chance, not a secret
	if away || full || fails {
		l.spoiled++
	}
	l.mu.Unlock()
	switch {
	case away:
		panic(http.ErrAbortHandler) // closes the connection without an answer
	case full:
		refuse(w, r, http.StatusInsufficientStorage, "XMinioStorageFull", "Storage backend has reached its minimum free drive threshold.")
		return
	case fails:
		refuse(w, r, http.StatusInternalServerError, "InternalError", "We encountered an internal error, please try again.")
		return
	}
	if pace > 0 {
		r.Body = &slowBody{ReadCloser: r.Body, link: l}
	}
	l.proxy.ServeHTTP(w, r)
}

// refuse answers an error as S3 does. The body is read first, as a store does that is full.
func refuse(w http.ResponseWriter, r *http.Request, status int, code, message string) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = io.Copy(w, strings.NewReader(`<?xml version="1.0" encoding="UTF-8"?><Error><Code>`+code+`</Code><Message>`+message+`</Message></Error>`))
}

// slowBody passes as many bytes in a second as the link's pace says, or all once the link is fast again.
type slowBody struct {
	io.ReadCloser
	link *S3Link
}

func (b *slowBody) Read(p []byte) (int, error) {
	b.link.mu.Lock()
	pace := b.link.pace
	b.link.mu.Unlock()
	if pace > 0 {
		<-time.After(slowPiece)
		p = p[:min(len(p), max(1, int(float64(pace)*slowPiece.Seconds())))]
	}
	return b.ReadCloser.Read(p)
}

// Away makes the store unreachable: connections end without an answer.
func (l *S3Link) Away(yes bool) { l.set(func() { l.away = yes }) }

// Full makes the store refuse every write for want of space.
func (l *S3Link) Full(yes bool) { l.set(func() { l.full = yes }) }

// Failing makes a part of all requests, from 0 to 1, fail with status 500.
func (l *S3Link) Failing(part float64) { l.set(func() { l.failing = part }) }

// Slow lets so many bytes of each body to the store pass in a second; 0: all.
func (l *S3Link) Slow(bytes int) { l.set(func() { l.pace = bytes }) }

// Spoiled is how many requests failed by this link.
func (l *S3Link) Spoiled() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spoiled
}

func (l *S3Link) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

// S3Stop is a request of a process to the object store at which a test acts, once.
type S3Stop struct {
	Process string // the component that asks
	Call    string // the method and the first part of the object's name: "PUT artifacts"
	Nth     int    // which of these requests it is, counted from 1; 0 means 1
	After   bool   // the store has done it, but the process has no answer; otherwise the store has not got the request
	// Do acts while the request or its answer stands still. It gets the path of the object. If it returns false, the connection ends.
	Do func(words []string) (pass bool)
}

// At adds a stop. Of two that fit the same request, the first acts.
func (l *S3Link) At(stop S3Stop) { l.set(func() { l.stops = append(l.stops, &stop) }) }

// Clear removes the stops of a process that have not acted.
func (l *S3Link) Clear(process string) {
	l.set(func() { l.stops = slices.DeleteFunc(l.stops, func(s *S3Stop) bool { return s.Process == process }) })
}

// stopAt takes the stop for a request; nil: there is none.
func (l *S3Link) stopAt(process string, r *http.Request) *S3Stop {
	parts := append(strings.SplitN(r.URL.Path, "/", 4), "", "", "") // the bucket is the first part
	call := r.Method + " " + parts[2]
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, s := range l.stops {
		if s.Process != process || s.Call != call {
			continue
		}
		if s.Nth--; s.Nth <= 0 {
			l.stops = slices.Delete(l.stops, i, i+1)
			return s
		}
	}
	return nil
}

// stopKey is the key of a request's stop in its context.
type stopKey struct{}

// remember lets the stop act before the answer to the request.
func (s *S3Stop) remember(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), stopKey{}, s))
}

// stopAfter acts before an answer is passed on.
func stopAfter(answer *http.Response) error {
	stop, ok := answer.Request.Context().Value(stopKey{}).(*S3Stop)
	if ok && !stop.Do([]string{answer.Request.URL.Path}) {
		return errors.New("the connection ends here")
	}
	return nil
}
