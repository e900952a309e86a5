package blob

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// answers notes since when the service answers no request.
type answers struct {
	next http.RoundTripper

	mu    sync.Mutex
	since time.Time // zero: it answered the last request
}

// RoundTrip sends a request. An answer that says that the service cannot serve now counts as none; a request that its caller gave up says
// nothing.
func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := a.next.RoundTrip(r)
	a.mu.Lock()
	defer a.mu.Unlock()
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
