package keyring

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Periods of a Ring. Together they keep the promise that a change counts within a second.
const (
	fresh     = 500 * time.Millisecond // how long the keys are used without another look at their version
	pause     = 50 * time.Millisecond  // between two looks for keys that are not known, which anybody can send
	lookLimit = time.Second            // for one look; a Redis that hangs must not keep known callers waiting
	watch     = time.Second            // between two looks at the key of a request that lasts
	noteEvery = time.Minute            // accuracy of a key's last use
)

// Source keeps the keys that were made at run time; *store.Store does.
type Source interface {
	KeysVersion(ctx context.Context) (string, error)
	KeySet(ctx context.Context) (store.KeySet, error)
	NoteKeyUse(ctx context.Context, used map[string]time.Time) error
}

// Config are the settings of a Ring.
type Config struct {
	Settings map[store.KeySum]Caller // keys of the settings, by their SHA-256
	Required bool                    // callers need a key even if there is none
	Now      func() time.Time        // default time.Now
	Logger   *slog.Logger            // default: nothing is logged
}

// Ring knows the valid keys. It is safe for concurrent use.
type Ring struct {
	Config
	source Source

	mu      sync.Mutex
	set     store.KeySet
	read    bool                 // set was read at least once
	seen    bool                 // there has been a key
	failing bool                 // the last look failed
	looked  time.Time            // when the last finished look began
	look    *look                // in progress
	ids     ids                  // of set, when they were asked for
	noted   map[string]time.Time // when the last use of a key was noted, by id
	unnoted map[string]time.Time // uses that the next look notes
	closed  bool
	looks   sync.WaitGroup
}

// look is one look at the keys in Redis.
type look struct{ done chan struct{} }

// New makes a Ring. It reads nothing before the first caller.
func New(source Source, c Config) *Ring {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Ring{Config: c, source: source, noted: map[string]time.Time{}, unnoted: map[string]time.Time{}}
}

// errNoKey refuses a caller without a valid key.
func errNoKey() error {
	return farm.Errorf(farm.CodeUnauthorized, "A valid API key is needed: send Authorization: Bearer <key>, or X-API-Key.")
}

// Find returns who sends a key; "" is a request without one. CodeUnauthorized: the key is not valid. CodeUnavailable: it is not
// known whether the farm has keys, because Redis did not answer since the process started.
//
// A key may also be sent in the form of wire.E2BKey.
func (r *Ring) Find(ctx context.Context, key string) (Caller, error) {
	if plain, ok := fromE2B(key); ok {
		if caller, err := r.find(ctx, plain); err == nil {
			return caller, nil
		}
	}
	return r.find(ctx, key)
}

func (r *Ring) find(ctx context.Context, key string) (Caller, error) {
	if key != "" {
		return r.FindSum(ctx, sha256.Sum256([]byte(key))) // keys are compared by their hash, so the time of the comparison reveals nothing
	}
	if err := r.refresh(ctx, time.Now().Add(-fresh)); err != nil {
		return Caller{}, err
	}
	if r.Open() {
		return anyone(), nil
	}
	return Caller{}, errNoKey()
}

// FindSum is Find for who has shown the key with this hash before.
func (r *Ring) FindSum(ctx context.Context, sum store.KeySum) (Caller, error) {
	if c, ok := r.Settings[sum]; ok {
		return c, nil
	}
	if err := r.refresh(ctx, time.Now().Add(-fresh)); err != nil {
		return Caller{}, err
	}
	found, ok := r.lookup(sum)
	if !ok { // it may be new
		if err := r.refresh(ctx, time.Now()); err != nil {
			return Caller{}, err
		}
		found, ok = r.lookup(sum)
	}
	if !ok {
		if r.Open() {
			return anyone(), nil // clients may send any key to a farm without keys
		}
		return Caller{}, errNoKey()
	}
	r.note(ctx, found.ID)
	return callerOf(found, sum), nil
}

// Known reports whether a text is a valid key, as far as this process knows without waiting for a look at the keys.
func (r *Ring) Known(text string) bool {
	if text == "" {
		return false
	}
	if plain, ok := fromE2B(text); ok && r.Known(plain) {
		return true
	}
	sum := sha256.Sum256([]byte(text))
	if _, ok := r.Settings[sum]; ok {
		return true
	}
	_, ok := r.lookup(sum)
	return ok
}

// StillOpen is Open after a look at the keys that is fresh.
func (r *Ring) StillOpen(ctx context.Context) bool {
	_ = r.refresh(ctx, time.Now().Add(-fresh)) // what is known is the answer
	return r.Open()
}

// Open reports whether callers need no key, as far as this process knows.
func (r *Ring) Open() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.Settings) == 0 && !r.Required && !r.seen
}

// lookup finds a key that has not expired.
func (r *Ring) lookup(sum store.KeySum) (farm.Key, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key, ok := r.set.Find(sum)
	return key, ok && !key.Expired(r.Now())
}

// refresh waits for a look at the keys that began after a time, and begins one if there is none. Looks that are not the first
// may fail: what is known stays valid.
func (r *Ring) refresh(ctx context.Context, since time.Time) error {
	for {
		r.mu.Lock()
		if r.looked.After(since) || r.closed {
			known := r.read
			r.mu.Unlock()
			if !known {
				return farm.Errorf(farm.CodeUnavailable, "The API keys cannot be read. Try again in a moment.")
			}
			return nil
		}
		l, rest := r.look, pause-time.Since(r.looked)
		if l == nil && rest <= 0 {
			l = r.begin(ctx)
		}
		r.mu.Unlock()
		if err := l.wait(ctx, rest); err != nil {
			return err
		}
	}
}

// wait waits for the look's end; for a time if there is no look.
func (l *look) wait(ctx context.Context, rest time.Duration) error {
	var done <-chan struct{}
	var over <-chan time.Time
	if l != nil {
		done = l.done
	} else {
		timer := time.NewTimer(rest)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-done:
	case <-over:
	case <-ctx.Done():
		return farm.Wrap(context.Cause(ctx), farm.CodeUnavailable, "the request ended before its key was checked")
	}
	return nil
}

// begin starts a look. The mutex is held.
func (r *Ring) begin(ctx context.Context) *look {
	l, began := &look{done: make(chan struct{})}, time.Now()
	used := r.unnoted
	r.look, r.unnoted = l, map[string]time.Time{}
	version, read := r.set.Version, r.read
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookLimit) // others wait for it too
	r.looks.Go(func() {
		defer cancel()
		set, changed, err := r.load(ctx, version, read, used)
		r.mu.Lock()
		defer r.mu.Unlock()
		if err != nil {
			if !r.failing {
				r.Logger.WarnContext(ctx, "cannot read the API keys: those known stay valid", slog.Any("error", err))
			}
			maps.Copy(used, r.unnoted) // the next look notes them
			r.unnoted = used
		}
		if changed {
			r.set, r.read = set, true
			r.seen = r.seen || set.Len() > 0
		}
		r.failing, r.looked, r.look = err != nil, began, nil
		close(l.done)
	})
	return l
}

// load notes uses and reads the keys if they have changed.
func (r *Ring) load(ctx context.Context, version string, read bool, used map[string]time.Time) (set store.KeySet, changed bool, err error) {
	if err := r.source.NoteKeyUse(ctx, used); err != nil {
		return set, false, err //nolint:wrapcheck // it says what failed
	}
	if read {
		now, err := r.source.KeysVersion(ctx)
		if err != nil || now == version {
			return set, false, err //nolint:wrapcheck // it says what failed
		}
	}
	set, err = r.source.KeySet(ctx)
	return set, err == nil, err //nolint:wrapcheck // it says what failed
}

// note records the use of a key, in Redis at once but without waiting, at most once in noteEvery.
func (r *Ring) note(ctx context.Context, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Now()
	if now.Sub(r.noted[id]) < noteEvery {
		return
	}
	if len(r.noted) > 2*r.set.Len() {
		clear(r.noted) // mostly of keys that are gone
	}
	r.noted[id], r.unnoted[id] = now, now
	if r.look == nil && !r.closed {
		r.begin(ctx)
	}
}

// Close ends reading: what is known stays valid for requests that are still served. It waits for reads in progress.
func (r *Ring) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.looks.Wait()
}
