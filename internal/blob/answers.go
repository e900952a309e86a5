package blob

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// fullFor is how long the store counts as full after it has refused a write for want of room. Whoever stops writing while it is full must try
// again at some time.
const fullFor = time.Minute

// answers notes since when the service answers no request, and whether it has room.
type answers struct {
	next http.RoundTripper

	mu    sync.Mutex
	since time.Time // zero: it answered the last request
	full  time.Time // when it last had no room for a write; zero: it has taken one since
}

// RoundTrip sends a request. An answer that says that the service cannot serve now counts as none; a request that its caller gave up says
// nothing.
func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := a.next.RoundTrip(r)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil && r.Method == http.MethodPut {
		switch {
		case answer.StatusCode == http.StatusInsufficientStorage:
			a.full = time.Now()
		case answer.StatusCode == http.StatusOK:
			a.full = time.Time{}
		}
	}
	switch {
	case err == nil && answer.StatusCode < http.StatusInternalServerError && answer.StatusCode != http.StatusTooManyRequests:
		a.since = time.Time{}
	case err != nil && errors.Is(r.Context().Err(), context.Canceled):
	case a.since.IsZero():
		a.since = time.Now()
	}
	return answer, err
}

func (a *answers) silent() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.since.IsZero() {
		return 0
	}
	return time.Since(a.since)
}

// isFull reports whether the last write of the last minute was refused for want of room.
func (a *answers) isFull() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.full.IsZero() && time.Since(a.full) < fullFor
}
