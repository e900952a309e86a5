package access_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAKeyCountsAtOnceAndARevokedOneNotAfterASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecords()
		ring := access.NewKeys(r, access.KeysConfig{Required: true})
		defer ring.Close()
		if _, code := find(t, ring, "a"); code != farm.CodeUnauthorized {
			t.Fatalf("an unknown key: %q", code)
		}
		r.create("a", acme(farm.ScopeRead))
		caller, code := find(t, ring, "a")
		if code != "" || caller.Tenant != "acme" || caller.KeyID != "key_a" || caller.May(farm.ScopeRun) || !caller.May(farm.ScopeRead) || caller.Fleet {
			t.Fatalf("a new key: %+v, %q", caller, code)
		}
		r.revoke("a")
		time.Sleep(time.Second)
		if _, code := find(t, ring, "a"); code != farm.CodeUnauthorized {
			t.Errorf("a second after it was revoked: %q", code)
		}
	})
}

func TestLooksAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecords()
		r.create("a", acme(farm.ScopeRun))
		ring := access.NewKeys(r, access.KeysConfig{})
		defer ring.Close()
		calls := func(secret func(int) string, of int) int {
			r.mu.Lock()
			before := r.looks
			r.mu.Unlock()
			var group sync.WaitGroup
			for i := range of {
				group.Go(func() {
					time.Sleep(time.Duration(i) * time.Second / time.Duration(of))
					_, _ = ring.Find(t.Context(), secret(i))
				})
			}
			group.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.looks - before
		}
		if n := calls(func(int) string { return "a" }, 10_000); n > 5 {
			t.Errorf("%d looks in a second of a known key's calls", n)
		}
		if n := calls(func(i int) string { return fmt.Sprint("guess", i) }, 10_000); n > 30 {
			t.Errorf("%d looks in a second of guesses", n)
		}
		r.mu.Lock()
		before := r.looks
		r.mu.Unlock()
		time.Sleep(time.Hour)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.looks != before {
			t.Errorf("%d looks in an hour without a caller", r.looks-before)
		}
	})
}

func TestKnownKeysSurviveAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecords()
		r.create("a", acme(farm.ScopeRun))
		settings := map[store.KeySum]access.Caller{sha256.Sum256([]byte("set")): access.FromSettings(farm.Key{ID: "key_set", Tenant: "ops"})}
		ring := access.NewKeys(r, access.KeysConfig{Settings: settings})
		defer ring.Close()
		r.fail(errors.New("away"))
		if _, code := find(t, ring, "a"); code != farm.CodeUnavailable {
			t.Errorf("before the keys were ever read: %q", code)
		}
		if caller, code := find(t, ring, "set"); code != "" || caller.Tenant != "ops" {
			t.Errorf("a key of the settings: %+v, %q", caller, code)
		}
		r.fail(nil)
		time.Sleep(time.Second)
		if _, code := find(t, ring, "a"); code != "" {
			t.Fatalf("after Redis came: %q", code)
		}
		r.fail(errors.New("away"))
		time.Sleep(time.Hour)
		if _, code := find(t, ring, "a"); code != "" {
			t.Errorf("known, and Redis away: %q", code)
		}
		if _, code := find(t, ring, "b"); code != farm.CodeUnauthorized {
			t.Errorf("unknown, and Redis away: %q", code)
		}
		r.fail(nil)
		r.mu.Lock()
		r.hang = true
		r.mu.Unlock()
		time.Sleep(time.Hour)
		if _, code := find(t, ring, "a"); code != "" {
			t.Errorf("known, and Redis hangs: %q", code)
		}
	})
}

// A Redis that lost the keys neither opens the farm nor closes it to the keys of the settings.
func TestLostKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecords()
		ring := access.NewKeys(r, access.KeysConfig{})
		defer ring.Close()
		caller, code := find(t, ring, "")
		if code != "" || caller.Tenant != access.DefaultTenant || !caller.May(farm.ScopeAdmin) || !caller.May(farm.ScopeRun) || !caller.Fleet {
			t.Fatalf("a farm without keys: %+v, %q", caller, code)
		}
		if _, code := find(t, ring, "any"); code != "" {
			t.Errorf("a farm without keys refuses a key: %q", code)
		}
		r.create("a", acme(farm.ScopeRun))
		time.Sleep(time.Second)
		for secret, want := range map[string]farm.Code{"": farm.CodeUnauthorized, "any": farm.CodeUnauthorized, "a": ""} {
			if _, code := find(t, ring, secret); code != want {
				t.Errorf("with a key, %q: %q", secret, code)
			}
		}
		for secret, want := range map[string]string{"": "A valid API key is needed", "any": "This API key is not valid"} {
			if _, err := ring.Find(t.Context(), secret); !strings.HasPrefix(farm.MessageOf(err), want) {
				t.Errorf("with a key, %q: %v, want %q", secret, err, want)
			}
		}
		r.lose()
		time.Sleep(time.Second)
		for _, secret := range []string{"", "any", "a"} {
			if _, code := find(t, ring, secret); code != farm.CodeUnauthorized {
				t.Errorf("after the keys were lost, %q: %q", secret, code)
			}
		}
	})
}

func TestClocks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecords()
		var mu sync.Mutex
		ahead := time.Duration(0) // of this process's clock
		ring := access.NewKeys(r, access.KeysConfig{Now: func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return time.Now().Add(ahead)
		}})
		defer ring.Close()
		key := acme(farm.ScopeRun)
		key.ExpiresAt = time.Now().Add(time.Hour)
		r.create("a", key)
		if _, code := find(t, ring, "a"); code != "" {
			t.Errorf("before its end: %q", code)
		}
		time.Sleep(time.Hour)
		if _, code := find(t, ring, "a"); code != farm.CodeUnauthorized {
			t.Errorf("at its end: %q", code)
		}
		mu.Lock()
		ahead = -24 * time.Hour // a clock that was set back
		mu.Unlock()
		if _, code := find(t, ring, "a"); code != "" {
			t.Errorf("on a clock that was set back: %q", code)
		}
		r.revoke("a") // counts whatever the clock says
		time.Sleep(time.Second)
		if _, code := find(t, ring, "a"); code != farm.CodeUnauthorized {
			t.Errorf("revoked, on a clock that was set back: %q", code)
		}
	})
}

func TestHoldEndsWithTheKey(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*records){
		"revoked": func(r *records) { r.revoke("a") },
		"expired": func(*records) { time.Sleep(time.Minute) },
		"lost":    func(r *records) { r.lose() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRecords()
				key := acme(farm.ScopeRun)
				key.ExpiresAt = time.Now().Add(time.Minute)
				r.create("a", key)
				r.create("b", acme(farm.ScopeRun))
				ring := access.NewKeys(r, access.KeysConfig{})
				defer ring.Close()
				hold := func(secret string) (context.Context, func()) {
					caller, code := find(t, ring, secret)
					if code != "" {
						t.Fatal(code)
					}
					ctx, cancel := context.WithCancel(t.Context())
					ctx, release := ring.Hold(ctx, caller)
					return ctx, func() { release(); cancel() }
				}
				a, releaseA := hold("a")
				defer releaseA()
				b, releaseB := hold("b")
				defer releaseB()
				ids, err := ring.IDs(t.Context(), "acme")
				if err != nil || len(ids) != 2 {
					t.Fatal(ids, err)
				}
				ofTokens := map[string]context.Context{} // by the id of the key: the requests that tokens made
				for _, id := range ids {
					ctx, cancel := context.WithCancel(t.Context())
					ctx, release := ring.Hold(ctx, access.Caller{Tenant: "acme", KeyID: id})
					defer func() { release(); cancel() }()
					ofTokens[id] = ctx
				}
				time.Sleep(30 * time.Second)
				if a.Err() != nil {
					t.Fatalf("a valid key ends its request: %v", context.Cause(a))
				}
				end(r)
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if !errors.Is(context.Cause(a), access.ErrEnded) {
					t.Errorf("the request goes on: %v", context.Cause(a))
				}
				if name != "lost" && b.Err() != nil {
					t.Errorf("another key's request ends: %v", context.Cause(b))
				}
				valid, _ := ring.IDs(t.Context(), "acme")
				for id, ctx := range ofTokens {
					if ended := errors.Is(context.Cause(ctx), access.ErrEnded); ended == slices.Contains(valid, id) {
						t.Errorf("the request of a token ended: %t; valid are %v of %v", ended, valid, ids)
					}
				}
			})
		})
	}
}

// What callers without a key began ends when the farm gets its first key.
func TestHoldWithoutAKeyEndsWithTheFirstKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecords()
		ring := access.NewKeys(r, access.KeysConfig{})
		defer ring.Close()
		caller, _ := find(t, ring, "")
		ctx, cancel := context.WithCancel(t.Context())
		ctx, release := ring.Hold(ctx, caller)
		defer func() { release(); cancel() }()
		time.Sleep(time.Hour)
		if ctx.Err() != nil {
			t.Fatal(context.Cause(ctx))
		}
		r.create("a", acme(farm.ScopeRun))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !errors.Is(context.Cause(ctx), access.ErrEnded) {
			t.Errorf("it goes on: %v", context.Cause(ctx))
		}
	})
}

func TestLastUseIsNoted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecords()
		r.create("a", acme(farm.ScopeRun))
		ring := access.NewKeys(r, access.KeysConfig{})
		defer ring.Close()
		used := func() time.Time {
			synctest.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.used["key_a"]
		}
		first := time.Now()
		_, _ = find(t, ring, "a")
		if got := used(); !got.Equal(first) {
			t.Errorf("noted %v, want %v", got, first)
		}
		time.Sleep(59 * time.Second)
		_, _ = find(t, ring, "a")
		if got := used(); !got.Equal(first) {
			t.Errorf("noted again after %v", got.Sub(first))
		}
		time.Sleep(time.Second)
		r.fail(errors.New("away"))
		_, _ = find(t, ring, "a")
		last := time.Now()
		time.Sleep(time.Second)
		r.fail(nil)
		_, _ = find(t, ring, "a")
		if got := used(); !got.Equal(last) {
			t.Errorf("noted %v, want %v, which Redis did not take at first", got, last)
		}
	})
}

// Ten thousand keys, on the real store.
func TestManyKeys(t *testing.T) {
	t.Parallel()
	const many = 10_000
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	s := store.New(rdb, storetest.NoTasks, store.Options{})
	t.Cleanup(func() { _ = s.Close() })
	for i := range many {
		secret := fmt.Sprint("secret-", i)
		key := farm.Key{ID: farm.NewID(farm.KeyPrefix), Tenant: fmt.Sprint("tenant-", i), Scopes: []farm.Scope{farm.ScopeRun}}
		testbed.Must(t, s.CreateKey(t.Context(), sha256.Sum256([]byte(secret)), key))
	}
	ring := access.NewKeys(s, access.KeysConfig{})
	defer ring.Close()
	for i := range many {
		if caller, code := find(t, ring, fmt.Sprint("secret-", i)); code != "" || caller.Tenant != fmt.Sprint("tenant-", i) {
			t.Fatalf("key %d: %+v, %q", i, caller, code)
		}
	}
	if _, code := find(t, ring, "secret-10000"); code != farm.CodeUnauthorized {
		t.Errorf("an unknown key: %q", code)
	}
}

func TestIDsOfATenantsKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecords()
		open := access.NewKeys(r, access.KeysConfig{})
		defer open.Close()
		if got, err := open.IDs(t.Context(), access.DefaultTenant); err != nil || len(got) != 1 || got[0] != "" {
			t.Errorf("without keys: %q, %v", got, err)
		}
		r.create("a", acme(farm.ScopeRun))
		expires := time.Now().Add(time.Hour)
		r.create("b", farm.Key{Tenant: "acme", ExpiresAt: expires})
		r.create("c", farm.Key{Tenant: "rival"})
		own := farm.Key{ID: "key_own", Tenant: "acme"}
		ring := access.NewKeys(r, access.KeysConfig{Settings: map[store.KeySum]access.Caller{{1}: access.FromSettings(own)}})
		defer ring.Close()
		ids := func() string {
			t.Helper()
			got, err := ring.IDs(t.Context(), "acme")
			testbed.Must(t, err)
			slices.Sort(got)
			return strings.Join(got, " ")
		}
		if got := ids(); got != "key_a key_b key_own" {
			t.Errorf("%s", got)
		}
		r.revoke("a")
		time.Sleep(time.Second)
		testbed.Diff(t, "after one was revoked", "key_b key_own", ids())
		time.Sleep(time.Hour)
		testbed.Diff(t, "after one expired", "key_own", ids())
	})
}

// A request may outlast the server that was stopped, with its key.
func TestClosedKeysKnowItsKeysAndReadsNoMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecords()
		r.create("a", acme(farm.ScopeRun))
		ring := access.NewKeys(r, access.KeysConfig{})
		if _, code := find(t, ring, "a"); code != "" {
			t.Fatalf("a key: %q", code)
		}
		ring.Close()
		r.mu.Lock()
		before := r.looks
		r.mu.Unlock()
		time.Sleep(time.Hour)
		if caller, code := find(t, ring, "a"); code != "" || caller.Tenant != "acme" {
			t.Errorf("the key after the end: %+v, %q", caller, code)
		}
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.looks != before {
			t.Errorf("%d looks after the end", r.looks-before)
		}
	})
}
