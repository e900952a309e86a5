package faulttest

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
)

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
