package execution

import "sync"

// FairLock is a FIFO lock: it is granted in the order of the calls of Lock. The zero value is unlocked.
type FairLock struct {
	mu      sync.Mutex
	locked  bool
	waiting []chan struct{}
}

// Lock waits for its turn. It returns false, without the lock, if quit was closed first.
func (l *FairLock) Lock(quit <-chan struct{}) bool {
	l.mu.Lock()
	if !l.locked {
		l.locked = true
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
	l.Unlock() // the lock was granted at the same moment
	return false
}

// Unlock passes the lock to the longest waiter.
func (l *FairLock) Unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		l.locked = false
		return
	}
	close(l.waiting[0])
	l.waiting = l.waiting[1:]
}
