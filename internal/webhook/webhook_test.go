package webhook_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/internal/webhook"
)

// The example of the Standard Webhooks specification's reference libraries.
func TestSignIsStandardWebhooks(t *testing.T) {
	t.Parallel()
	secret := []byte{0x31, 0xf2, 0xa0, 0x9e, 0x46, 0x56, 0x1c, 0x8e, 0x8b, 0x45, 0x8c, 0xe4}
	a := webhook.Sign(secret, "msg_1", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if !strings.HasPrefix(a, "v1,") || len(a) != len("v1,")+44 {
		t.Fatalf("signature %q has another form", a)
	}
	if a == webhook.Sign(secret, "msg_2", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`)) ||
		a == webhook.Sign(secret, "msg_1", time.Unix(1614265331, 0), []byte(`{"test": 2432232314}`)) ||
		a == webhook.Sign(webhook.TenantSecret(secret, "x"), "msg_1", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`)) {
		t.Fatal("id, time and key are part of the signature")
	}
}

type names map[string][]string

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	var ips []netip.Addr
	for _, a := range n[strings.TrimSuffix(host, ".")] {
		ips = append(ips, netip.MustParseAddr(a))
	}
	return ips, nil
}

func TestCheckRefusesWhatIsNotPublic(t *testing.T) {
	t.Parallel()
	many := func(n int) []string { return slices.Repeat([]string{"1.1.1.1"}, n) }
	p := webhook.Policy{Resolver: names{"good.example": {"1.1.1.1"}, "63.example": many(63), "64.example": many(64), "65.example": many(65), "mixed.example": {"1.1.1.1", "10.0.0.1"}, "inner.example": {"::1"}}}
	for url, ok := range map[string]bool{
		"https://good.example/hook": true, "http://1.1.1.1/": true,
		"https://63.example/": true, "https://64.example/": true, "https://65.example/": false,
		"https://mixed.example/": false, "https://inner.example/": false, "https://nowhere.example/": false,
		"https://good.example./hook": true, "https://good.example:8443/": true, "HTTPS://good.example/": true,
		"https://good.example:0/": false, "https://good.example:1/": true, "https://good.example:65534/": true, "https://good.example:65535/": true,
		"https://good.example:65536/": false, "https://good.example:00/": false,
		"https:///path": false, "https://:80/": false, "//good.example/": false, "http://[::ffff:10.0.0.1]/": false, "http://2130706433/": false,
		"file:///etc/passwd": false, "not a url": false, "http://127.0.0.1:8000/": false, "http://[::1]/": false, "http://u:p@good.example/": false,
		"https://good.example/" + strings.Repeat("x", webhook.MaxURLBytes): false,
	} {
		err := p.Check(t.Context(), url)
		if ok && err != nil || !ok && farm.CodeOf(err) != farm.CodeInvalid {
			t.Errorf("Check(%.60s) gave %v", url, err)
		}
	}
}

// A caller cannot ask which names the internal network has: the refusal is the same for one that has a private address and one that has none, and
// no search domain makes a name of it.
func TestRefusalDoesNotTellInternalNames(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"inner", "inner.", "nowhere"} {
		p := webhook.Policy{Resolver: rooted{t, names{"inner": {"10.0.0.1"}}}}
		got := p.Check(t.Context(), "http://"+host+"/")
		other := webhook.Policy{Resolver: rooted{t, names{}}}.Check(t.Context(), "http://"+host+"/")
		if got == nil || other == nil || got.Error() != other.Error() {
			t.Errorf("%s: %v, and where it is unknown: %v", host, got, other)
		}
	}
}

// rooted resolves names that end with a dot.
type rooted struct {
	t *testing.T
	names
}

func (r rooted) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	if !strings.HasSuffix(host, ".") {
		r.t.Errorf("%q is looked up, which search domains complete", host)
	}
	return r.names.LookupNetIP(ctx, network, host)
}

// Who tries a callback on one machine learns which setting allows it.
func TestRefusalOfAPrivateAddressNamesTheSetting(t *testing.T) {
	t.Parallel()
	if err := (webhook.Policy{}).Check(t.Context(), "http://127.0.0.1:9000/"); err == nil || !strings.Contains(err.Error(), "api.allow_private_callbacks") {
		t.Errorf("%v", err)
	}
	if err := (webhook.Policy{AllowPrivate: true}).Check(t.Context(), "http://127.0.0.1:9000/"); err != nil {
		t.Errorf("with the setting: %v", err)
	}
}

func TestPostIsSignedAndNeverReachesPrivateAddresses(t *testing.T) {
	t.Parallel()
	var got http.Header
	var body string
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got, body = r.Header.Clone(), string(b)
		if r.URL.Path == "/gone" {
			w.WriteHeader(http.StatusGone)
		}
	}))
	defer receiver.Close()
	secret, at := []byte("k"), time.Unix(1_700_000_000, 0)
	failure := func(err error) webhook.Failure {
		if f, ok := errors.AsType[*webhook.Failure](err); ok {
			return *f
		}
		return webhook.Failure{}
	}
	if err := webhook.NewSender(webhook.Policy{}).Post(t.Context(), receiver.URL, "job_1", secret, []byte("{}"), at); !failure(err).Gone || got != nil {
		t.Fatalf("loopback was reached: %v", err)
	}
	sender := webhook.NewSender(webhook.Policy{AllowPrivate: true})
	testbed.Must(t, sender.Post(t.Context(), receiver.URL, "job_1", secret, []byte(`{"a":1}`), at))
	if got.Get("webhook-id") != "job_1" || got.Get("webhook-timestamp") != strconv.FormatInt(at.Unix(), 10) ||
		got.Get("webhook-signature") != webhook.Sign(secret, "job_1", at, []byte(body)) || body != `{"a":1}` {
		t.Fatalf("headers %v, body %q", got, body)
	}
	if err := sender.Post(t.Context(), receiver.URL+"/gone", "job_1", secret, nil, at); !failure(err).Gone {
		t.Fatalf("410 means never again: %v", err)
	}
}

// A receiver that answered with empty gzip members had the worker unpack them for 20 seconds, at 7 ns of a core for each byte.
func TestAnswersAreNotUnpacked(t *testing.T) {
	t.Parallel()
	var packed bytes.Buffer
	testbed.Must(t, gzip.NewWriter(&packed).Close())
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked := r.Header.Get("Accept-Encoding"); asked != "" {
			t.Errorf("the callback asks for an answer in %s", asked)
		}
		w.Header().Set("Content-Encoding", "gzip")
		for r.Context().Err() == nil { // until the sender has enough
			_, _ = w.Write(packed.Bytes())
		}
	}))
	defer receiver.Close()
	testbed.Must(t, webhook.NewSender(webhook.Policy{AllowPrivate: true}).Post(t.Context(), receiver.URL, "job_1", []byte("k"), nil, time.Now()))
}

// Errors of deliveries are logged: they name the host, and nothing of the path and the query, which may hold secrets.
func TestFailureNamesTheHostOnly(t *testing.T) {
	t.Parallel()
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) }))
	down := httptest.NewServer(http.NotFoundHandler())
	defer receiver.Close()
	down.Close()
	sender := webhook.NewSender(webhook.Policy{AllowPrivate: true})
	for to, want := range map[string]string{receiver.URL: "the receiver answered 400", down.URL: "connection refused"} {
		err := sender.Post(t.Context(), to+"/secret?token=secret", "job_1", []byte("k"), nil, time.Now())
		f, ok := errors.AsType[*webhook.Failure](err)
		if !ok || f.Gone || f.Host != strings.TrimPrefix(to, "http://") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v, want one of %s with %q", err, to, want)
		}
	}
	if err := sender.Post(t.Context(), "http://good.example/%zz?secret", "job_1", nil, nil, time.Now()); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("an address that cannot be requested: %v", err)
	}
}

// Texts of failures are logged, and kept until the next try: a receiver cannot choose their length.
func TestReasonsOfFailuresAreShort(t *testing.T) {
	t.Parallel()
	const most = 500
	for _, size := range []int{1, most - 1, most, most + 1, 250_000} {
		want := "send callback: " + strings.Repeat("a", min(size, most))
		if size > most {
			want += "…"
		}
		testbed.Diff(t, fmt.Sprint("text of ", size, " bytes"), want, (&webhook.Failure{Reason: errors.New(strings.Repeat("a", size))}).Error())
	}
}

// A receiver cannot make the farm hold very many short lines.
func TestLinesOfAReceiversHeaderAreBounded(t *testing.T) {
	t.Parallel()
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 300 {
			w.Header().Add("A", "")
		}
	}))
	defer receiver.Close()
	err := webhook.NewSender(webhook.Policy{AllowPrivate: true}).Post(t.Context(), receiver.URL, "job_1", []byte("k"), nil, time.Now())
	if !errors.Is(err, httpserver.ErrHeaderLines) {
		t.Errorf("a header of 300 lines: %v", err)
	}
}

// Callback URLs come from callers. What is accepted can be requested, has no user, and is not at a private address.
func FuzzCheck(f *testing.F) {
	for _, seed := range []string{
		"", "https://good.example/hook", "http://1.1.1.1/", "http://127.0.0.1/", "http://[::1]:80/", "http://[::ffff:10.0.0.1]/", "http://0x7f000001/", "http://2130706433/", "http://u:p@good.example/", "http://good.example@127.0.0.1/",
		"http://good.example:80@127.0.0.1/", "http://127.1/", "//good.example", "ftp://good.example/", "http://good.example\\@127.0.0.1/", "http://good.example%00.x/", "http://[fe80::1%25lo]/", "HTTP://GOOD.example./", "http://good.example:99999/", "http://good.example/\r\nX: y",
	} {
		f.Add(seed)
	}
	policy := webhook.Policy{Resolver: names{"good.example": {"1.1.1.1"}}}
	f.Fuzz(func(t *testing.T, raw string) {
		if err := policy.Check(t.Context(), raw); err != nil {
			if farm.CodeOf(err) != farm.CodeInvalid {
				t.Fatalf("%q was refused with %v", raw, err)
			}
			return
		}
		u, err := url.Parse(raw)
		if err != nil || u.User != nil || len(raw) > webhook.MaxURLBytes {
			t.Fatalf("%q was accepted", raw)
		}
		if ip, err := netip.ParseAddr(u.Hostname()); err == nil && !egressproxy.Public(ip) {
			t.Fatalf("%q leads to a private address", raw)
		}
		if _, err := http.NewRequest(http.MethodPost, raw, nil); err != nil {
			t.Fatalf("%q was accepted and cannot be requested: %v", raw, err)
		}
	})
}
