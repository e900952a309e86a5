package server

import (
	"context"
	"slices"
	"sync"

	"github.com/hashicorp/yamux"
)

// sessions are the open sessions with workers, the newest last. The zero value has none.
type sessions struct {
	mu      sync.Mutex
	open    []*yamux.Session
	changed chan struct{} // closed and replaced when one is added; nil: no waiters
}

// add adds a session. The returned function removes it.
func (l *sessions) add(session *yamux.Session) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, session)
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open = slices.DeleteFunc(l.open, func(s *yamux.Session) bool { return s == session })
	}
}

// Stream opens a stream on the newest session that accepts one. It waits for a session until ctx is done.
func (l *sessions) Stream(ctx context.Context) (*yamux.Stream, error) {
	for {
		l.mu.Lock()
		list := slices.Clone(l.open)
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		for _, session := range slices.Backward(list) {
			if stream, err := session.OpenStream(); err == nil {
				return stream, nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
