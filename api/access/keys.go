package access

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Periods of Keys. Together they keep the promise that a change counts within a second.
const (
	fresh     = 500 * time.Millisecond // how long the keys are used without another look at their version
	pause     = 50 * time.Millisecond  // between two looks for keys that are not known, which anybody can send
	lookLimit = time.Second            // for one look; a Redis that hangs must not keep known callers waiting
	watch     = time.Second            // between two looks at the key of a request that lasts
	noteEvery = time.Minute            // accuracy of a key's last use
)

// KeySource keeps the keys that were made at run time; *store.Store does.
type KeySource interface {
	KeysVersion(ctx context.Context) (string, error)
	KeySet(ctx context.Context) (store.KeySet, error)
	NoteKeyUse(ctx context.Context, used map[string]time.Time) error
}

// KeysConfig are the settings of Keys.
type KeysConfig struct {
	Settings map[store.KeySum]Caller // keys of the settings, by their SHA-256
	Required bool                    // callers need a key even if there is none
	Now      func() time.Time        // default time.Now
	Logger   *slog.Logger            // default: nothing is logged
}

// Keys knows the valid keys: those of the settings, and those that were made at run time. It is safe for concurrent use.
//
// A key made or revoked in any process counts here within a second: Keys looks at the version of the keys before it uses what
// it knows, at most twice a second, and reads them again when it has changed. Nothing is read while there are no requests. While Redis is
// away, the keys that were known stay valid; those of the settings are valid always. A request that lasts is ended when its key
// is revoked or expires.
//
// A farm without keys takes every caller as the operator. It needs keys as soon as one exists, and from then on until it is
// restarted, even if all keys are gone: a Redis that lost its data must not open the farm.
type Keys struct {
	KeysConfig
	source KeySource

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

// NewKeys makes Keys. It reads nothing before the first caller.
func NewKeys(source KeySource, c KeysConfig) *Keys {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Keys{KeysConfig: c, source: source, noted: map[string]time.Time{}, unnoted: map[string]time.Time{}}
}

// errNoKey refuses a caller without a key.
func errNoKey() error {
	return farm.Errorf(farm.CodeUnauthorized, "A valid API key is needed: send Authorization: Bearer <key>, or X-API-Key.")
}

// Find returns who sends a key; "" is a request without one. CodeUnauthorized: the key is not valid. CodeUnavailable: it is not
// known whether the farm has keys, because Redis did not answer since the process started.
//
// A key may also be sent in the form of wire.E2BKey.
func (r *Keys) Find(ctx context.Context, key string) (Caller, error) {
	if plain, ok := fromE2B(key); ok {
		if caller, err := r.find(ctx, plain); err == nil {
			return caller, nil
		}
	}
	return r.find(ctx, key)
}

func (r *Keys) find(ctx context.Context, key string) (Caller, error) {
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
func (r *Keys) FindSum(ctx context.Context, sum store.KeySum) (Caller, error) {
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
		return Caller{}, farm.Errorf(farm.CodeUnauthorized, "This API key is not valid: it is wrong, was revoked or has expired.")
	}
	r.note(ctx, found.ID)
	return callerOf(found, sum), nil
}

// Known reports whether a text is a valid key, as far as this process knows without waiting for a look at the keys.
func (r *Keys) Known(text string) bool {
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
func (r *Keys) StillOpen(ctx context.Context) bool {
	_ = r.refresh(ctx, time.Now().Add(-fresh)) // what is known is the answer
	return r.Open()
}

// Open reports whether callers need no key, as far as this process knows.
func (r *Keys) Open() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.Settings) == 0 && !r.Required && !r.seen
}

// lookup finds a key that has not expired.
func (r *Keys) lookup(sum store.KeySum) (farm.Key, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key, ok := r.set.Find(sum)
	return key, ok && !key.Expired(r.Now())
}

// refresh waits for a look at the keys that began after a time, and begins one if there is none. Looks that are not the first
// may fail: what is known stays valid.
func (r *Keys) refresh(ctx context.Context, since time.Time) error {
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
func (r *Keys) begin(ctx context.Context) *look {
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
func (r *Keys) load(ctx context.Context, version string, read bool, used map[string]time.Time) (set store.KeySet, changed bool, err error) {
	if err := r.source.NoteKeyUse(ctx, used); err != nil {
		return set, false, err
	}
	if read {
		now, err := r.source.KeysVersion(ctx)
		if err != nil || now == version {
			return set, false, err
		}
	}
	set, err = r.source.KeySet(ctx)
	return set, err == nil, err
}

// note records the use of a key, in Redis at once but without waiting, at most once in noteEvery.
func (r *Keys) note(ctx context.Context, id string) {
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
func (r *Keys) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.looks.Wait()
}

// ids are the keys of each tenant in one version of the set, decoded once.
type ids struct {
	version string
	made    map[string][]farm.Key
}

// IDs are the ids of the valid keys of a tenant, in no order; on a farm without keys, "" alone. It fails as Find does if the keys are not known.
func (r *Keys) IDs(ctx context.Context, tenant string) ([]string, error) {
	if err := r.refresh(ctx, time.Now().Add(-fresh)); err != nil {
		return nil, err
	}
	if r.Open() {
		return []string{""}, nil
	}
	var out []string
	for _, caller := range r.Settings {
		if caller.Tenant == tenant {
			out = append(out, caller.KeyID)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ids.made == nil || r.ids.version != r.set.Version {
		r.ids = ids{version: r.set.Version, made: map[string][]farm.Key{}}
		for key := range r.set.All() {
			r.ids.made[key.Tenant] = append(r.ids.made[key.Tenant], key)
		}
	}
	for _, key := range r.ids.made[tenant] {
		if !key.Expired(r.Now()) {
			out = append(out, key.ID)
		}
	}
	return out, nil
}

// fromE2B returns the key that is sent in the form of wire.E2BKey. One that only looks like it is a key of its own.
func fromE2B(key string) (plain string, ok bool) {
	text, ok := strings.CutPrefix(key, wire.E2BPrefix)
	if !ok {
		return "", false
	}
	raw, err := hex.DecodeString(text)
	return string(raw), err == nil && len(raw) > 0
}
