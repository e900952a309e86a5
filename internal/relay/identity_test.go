package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// records makes an empty store.
func records(t *testing.T) *store.Store {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	s := store.New(rdb, storetest.NoTasks, store.Options{})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func identity(t *testing.T, source Authorities, role Role, name string, now func() time.Time) *Identity {
	t.Helper()
	i := NewIdentity(IdentityConfig{Source: source, Role: role, Name: name, Now: now})
	testbed.Must(t, i.Refresh(t.Context()))
	return i
}

// meet makes a handshake between a caller's end and a worker's, and returns the error of each.
func meet(t *testing.T, caller *Identity, name string, worker *Identity) (client, server error) {
	t.Helper()
	config, err := caller.clientTLS(name, "h2")
	testbed.Must(t, err)
	return shake(t, config, worker.ServerTLS())
}

func shake(t *testing.T, client, server *tls.Config) (error, error) {
	t.Helper()
	a, b := net.Pipe()
	defer func() { _, _ = a.Close(), b.Close() }()
	ctx, done := context.WithTimeout(t.Context(), 20*time.Second)
	defer done()
	ended := make(chan error, 1)
	go func() {
		s := tls.Server(b, server)
		err := s.HandshakeContext(ctx)
		if err == nil {
			_, err = s.Write([]byte("x"))
		}
		_ = b.Close()
		ended <- err
	}()
	c := tls.Client(a, client)
	err := c.HandshakeContext(ctx)
	if err == nil { // in TLS 1.3 the client learns by its first read that its certificate was refused
		_, err = c.Read(make([]byte, 1))
	}
	_ = a.Close()
	return err, <-ended
}

func TestOnlyTheAPIReachesAWorkerAndOnlyTheOneItMeans(t *testing.T) {
	t.Parallel()
	farm, other := records(t), records(t)
	api, worker := identity(t, farm, Caller, "", time.Now), identity(t, farm, Worker, "wrk_1", time.Now)
	second, stranger := identity(t, farm, Worker, "wrk_2", time.Now), identity(t, other, Caller, "", time.Now)
	if c, s := meet(t, api, "wrk_1", worker); c != nil || s != nil {
		t.Errorf("the API to its worker: %v, %v", c, s)
	}
	for name, c := range map[string]struct {
		caller *Identity
		to     string
		worker *Identity
	}{
		"another worker at the address":    {api, "wrk_1", second},
		"a worker that calls":              {second, "wrk_1", worker},
		"the API that serves":              {api, "wrk_1", api},
		"an API of another farm":           {stranger, "wrk_1", worker},
		"an API that reads another's list": {api, "wrk_1", identity(t, other, Worker, "wrk_1", time.Now)},
	} {
		if client, server := meet(t, c.caller, c.to, c.worker); client == nil || server == nil {
			t.Errorf("%s: %v, %v", name, client, server)
		}
	}
	for name, change := range map[string]func(*tls.Config){
		"no certificate": func(c *tls.Config) { c.Certificates = nil },
		"TLS 1.2":        func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 },
	} {
		config, err := api.clientTLS("wrk_1", "h2")
		testbed.Must(t, err)
		change(config)
		if client, server := shake(t, config, worker.ServerTLS()); client == nil || server == nil {
			t.Errorf("%s: %v, %v", name, client, server)
		}
	}
}

func TestAnIdentityBeforeItsFirstRefreshServesNobody(t *testing.T) {
	t.Parallel()
	farm := records(t)
	api, worker := identity(t, farm, Caller, "", time.Now), NewIdentity(IdentityConfig{Source: farm, Role: Worker, Name: "wrk_1"})
	if c, s := meet(t, api, "wrk_1", worker); c == nil || s == nil {
		t.Errorf("%v, %v", c, s)
	}
	if _, err := worker.clientTLS("wrk_2", "h2"); !errors.Is(err, errNoIdentity) {
		t.Errorf("call: %v", err)
	}
}

// Processes of a farm start at the same time, and agree on one authority.
func TestOneAuthorityIsMade(t *testing.T) {
	t.Parallel()
	farm := records(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := NewIdentity(IdentityConfig{Source: farm, Role: Worker, Name: "wrk_1"}).Refresh(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	doc, err := farm.LiveAuthorities(t.Context())
	if n := len(parseAuthorities(doc, time.Now())); err != nil || n != 1 {
		t.Errorf("%d authorities, %v", n, err)
	}
}

// Over months, with a new authority every 30 days and a certificate for a day, two processes that refresh at different times always
// understand each other.
func TestAuthoritiesAreReplacedWithoutAGap(t *testing.T) {
	t.Parallel()
	farm := records(t)
	at := time.Now()
	now := func() time.Time { return at }
	api, worker := identity(t, farm, Caller, "", now), identity(t, farm, Worker, "wrk_1", now)
	first, signers := api.known[0].Cert, map[string]bool{}
	for step := range 2 * 130 * 24 { // half hours
		at = at.Add(30 * time.Minute)
		refreshed := api
		if step%2 == 1 {
			refreshed = worker
		}
		testbed.Must(t, refreshed.Refresh(t.Context()))
		signers[string(worker.own.Leaf.AuthorityKeyId)] = true
		if step%97 != 0 && len(api.known) == len(worker.known) {
			continue // the handshakes that matter are those while one of them knows more
		}
		if c, s := meet(t, api, "wrk_1", worker); c != nil || s != nil {
			t.Fatalf("after %s: %v, %v", time.Duration(step)*30*time.Minute, c, s)
		}
	}
	if string(api.known[0].Cert) == string(first) || len(api.known) > 4 || len(signers) < 4 {
		t.Errorf("%d authorities are kept, %d signed", len(api.known), len(signers))
	}
}

// Redis lost its data: the next refresh of each process leads to a new authority for all.
func TestLostAuthoritiesAreMadeAnew(t *testing.T) {
	t.Parallel()
	farm, empty := records(t), records(t)
	api, worker := identity(t, farm, Caller, "", time.Now), identity(t, farm, Worker, "wrk_1", time.Now)
	api.source, worker.source = empty, empty
	for _, i := range []*Identity{api, worker} {
		testbed.Must(t, i.Refresh(t.Context()))
	}
	if c, s := meet(t, api, "wrk_1", worker); c != nil || s != nil {
		t.Errorf("%v, %v", c, s)
	}
}

func TestGarbageCountsAsNoAuthority(t *testing.T) {
	t.Parallel()
	for _, doc := range []string{"", "null", "{", "[]", `[{"cert":"AAAA","key":"AAAA"}]`, `[null]`} {
		if got := parseAuthorities([]byte(doc), time.Now()); len(got) != 0 {
			t.Errorf("%q: %d authorities", doc, len(got))
		}
	}
}

func TestPathsOfAgentsLiveParts(t *testing.T) {
	t.Parallel()
	id := farm.NewID(farm.SandboxPrefix)
	want := Target{Ref: farm.Ref{Tenant: "acme", ID: id}, Generation: 3}
	got, rest, err := ParsePath(want.path("/v1/live/processes/x"))
	if err != nil || got != want || rest != "/v1/live/processes/x" {
		t.Errorf("%+v, %q, %v", got, rest, err)
	}
	for _, path := range []string{
		"", "/", "/acme", "/acme/" + id + "/3", "/acme/" + id + "/3/", "/acme/" + id + "/x/v1/live/processes", "/acme/sbx_1/3/v1/live/processes",
		"/a b/" + id + "/3/v1/live/processes", "//" + id + "/3/v1/live/processes", "acme/" + id + "/3/v1/live/processes",
		"/acme/" + id + "/3/v1/executions", "/acme/" + id + "/3/v1/live/", "/acme/" + id + "/3/v1/live/../executions",
		"/acme/" + id + "/3/v1/live/processes/../../files", "/acme/" + id + "/3/v1/live//processes", "/acme/" + id + "/3/v1/live/./processes", "/acme/" + id + "/3/v1/livery",
	} {
		if _, rest, err := ParsePath(path); err == nil {
			t.Errorf("%q leads to %q", path, rest)
		}
	}
}

func TestListenAddresses(t *testing.T) {
	t.Parallel()
	for listen, ok := range map[string]bool{
		"auto": true, "auto:8003": true, "none": true, "127.0.0.1:0": true, "10.0.0.7:8003": true, "[::1]:8003": true, "worker.example:65535": true,
		"": false, "127.0.0.1": false, "0.0.0.0:8003": false, ":8003": false, "[::]:8003": false, "127.0.0.1:65536": false, "127.0.0.1:x": false, "auto:-1": false,
	} {
		if err := CheckListen(listen); (err == nil) != ok {
			t.Errorf("%q: %v", listen, err)
		}
	}
	for _, c := range []struct{ listen, network, redis, want string }{
		{"auto", "unix", "/run/redis.sock", "127.0.0.1:0"},
		{"auto:8003", "tcp", "127.0.0.1:6379", "127.0.0.1:8003"},
		{"127.0.0.2:1", "tcp", "127.0.0.1:6379", "127.0.0.2:1"},
	} {
		if got, err := ListenAddress(c.listen, c.network, c.redis); err != nil || got != c.want {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
	if got, err := ListenAddress("auto", "tcp", "no such host:1"); err == nil {
		t.Errorf("an address that cannot be reached: %q", got)
	}
}
