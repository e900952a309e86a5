package s3

import "sync"

// uploadLocks orders the requests of each upload: parts can be placed concurrently, but not while the upload is completed or
// aborted. Otherwise a part could be placed in a folder that is being removed, and the folder would remain. The zero value is
// ready to use.
type uploadLocks struct {
	mu    sync.Mutex
	locks map[string]*uploadLock
}

type uploadLock struct {
	sync.RWMutex
	users int // holding it or waiting for it; guarded by uploadLocks.mu
}

// lock waits for exclusive use of an upload.
func (l *uploadLocks) lock(id string) (unlock func()) {
	u := l.use(id)
	u.Lock()
	return func() {
		u.Unlock()
		l.leave(id, u)
	}
}

// share waits for shared use of an upload.
func (l *uploadLocks) share(id string) (unlock func()) {
	u := l.use(id)
	u.RLock()
	return func() {
		u.RUnlock()
		l.leave(id, u)
	}
}

func (l *uploadLocks) use(id string) *uploadLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.locks[id]
	if u == nil {
		u = new(uploadLock)
		if l.locks == nil {
			l.locks = map[string]*uploadLock{}
		}
		l.locks[id] = u
	}
	u.users++
	return u
}

func (l *uploadLocks) leave(id string, u *uploadLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if u.users--; u.users == 0 {
		delete(l.locks, id)
	}
}
