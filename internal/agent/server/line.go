package server

import "sync"

// line is a lock that is given in the order in which it was asked for. The zero value is free.
type line struct {
	mu      sync.Mutex
	held    bool
	waiting []chan struct{}
}

// acquire waits for its turn; false when quit was closed before.
func (l *line) acquire(quit <-chan struct{}) bool {
	l.mu.Lock()
	if !l.held {
		l.held = true
		l.mu.Unlock()
		return true
	}
	turn := make(chan struct{})
	l.waiting = append(l.waiting, turn)
	l.mu.Unlock()
	select {
	case <-turn:
		return true
	case <-quit:
	}
	l.mu.Lock()
	for i, w := range l.waiting {
		if w == turn {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			l.mu.Unlock()
			return false
		}
	}
	l.mu.Unlock()
	l.release() // the turn came at the same moment
	return false
}

// release gives the lock to the next in line.
func (l *line) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		l.held = false
		return
	}
	close(l.waiting[0])
	l.waiting = l.waiting[1:]
}
