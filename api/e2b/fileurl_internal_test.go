package e2b

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/internal/farm"
)

type linkKey struct{}

func (linkKey) LinkKey(context.Context) ([]byte, error) { return bytes.Repeat([]byte{1}, 32), nil }

// searching is a Gateway with sandboxes and one key, whose clock stands still.
func searching(t *testing.T, sandboxes int) (*Gateway, []farm.Ref) {
	t.Helper()
	refs := make([]farm.Ref, sandboxes)
	for i := range refs {
		refs[i] = farm.Ref{Tenant: "acme", ID: fmt.Sprintf("%s%025d0", farm.SandboxPrefix, i)}
	}
	d := New(Deps{
		Signer: access.NewSigner(linkKey{}, time.Now), Now: func() time.Time { return time.Unix(1_700_000_000, 0) },
		Opened: func(context.Context) ([]farm.Ref, error) { return refs, nil },
		Keys:   func(context.Context, string) ([]string, error) { return []string{"key_1"}, nil },
	})
	return d, refs
}

// from is a request from an address.
func from(t *testing.T, address string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/files", http.NoBody)
	r.RemoteAddr = address
	return r
}

// urlBy is a URL that a sandbox's token has signed.
func urlBy(t *testing.T, d *Gateway, ref farm.Ref) signedURL {
	t.Helper()
	token, err := d.token(t.Context(), accessToken, Box{Tenant: ref.Tenant, ID: ref.ID, Key: "key_1"})
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("a:read::" + token))
	return signedURL{signature: sum[:], text: [2]string{"a:read::", ""}}
}

func TestSignersAreBounded(t *testing.T) {
	t.Parallel()
	for extra, found := range map[int]bool{-1: true, 0: true, 1: false} {
		d, refs := searching(t, maxSigners+extra)
		last := refs[len(refs)-1]
		box, err := d.signer(from(t, "192.0.2.1:1"), urlBy(t, d, last), "")
		if found && (err != nil || box.ID != last.ID || box.Tenant != "acme" || box.Key != "key_1") {
			t.Errorf("%d sandboxes: %+v, %v", len(refs), box, err)
		}
		if !found && (farm.CodeOf(err) != farm.CodeUnauthorized || !strings.Contains(err.Error(), "api.preview_domain")) {
			t.Errorf("%d sandboxes: %+v, %v", len(refs), box, err)
		}
		if left, want := d.searches.limit(sender(from(t, "192.0.2.1:1"))).TokensAt(d.Now()), signerBurst-len(refs); int(left) != want {
			t.Errorf("%d sandboxes: the address has %.0f tokens left, want %d", len(refs), left, want)
		}
		if box, err := d.signer(from(t, "192.0.2.1:1"), urlBy(t, d, last), last.ID); err != nil || box.ID != last.ID { // the host names it
			t.Errorf("%d sandboxes, one named: %+v, %v", len(refs), box, err)
		}
	}
}

// An address that has used up its searches stops nobody else, and not those whose host names the sandbox.
func TestSearchesAreBoundedByAddress(t *testing.T) {
	t.Parallel()
	d, refs := searching(t, 1)
	u := urlBy(t, d, refs[0])
	const searchBurst = signerBurst / searchCost
	for n := 1; n <= searchBurst; n++ {
		if _, err := d.signer(from(t, "192.0.2.1:1"), u, ""); err != nil {
			t.Fatalf("search %d: %v", n, err)
		}
	}
	for address, want := range map[string]farm.Code{"192.0.2.1:2": farm.CodeExhausted, "[::ffff:192.0.2.1]:3": farm.CodeExhausted, "192.0.2.2:1": "", "[2001:db8::1]:1": ""} {
		if _, err := d.signer(from(t, address), u, ""); err == nil && want != "" || err != nil && farm.CodeOf(err) != want {
			t.Errorf("from %s: %v", address, err)
		}
	}
	for n := 2; n <= searchBurst; n++ { // all addresses of a network together
		if _, err := d.signer(from(t, fmt.Sprintf("[2001:db8::%x]:1", n)), u, ""); err != nil {
			t.Fatalf("search %d of a network: %v", n, err)
		}
	}
	if _, err := d.signer(from(t, "[2001:db8::ffff]:1"), u, ""); farm.CodeOf(err) != farm.CodeExhausted {
		t.Errorf("from a network beyond its searches: %v", err)
	}
	for range 2 * searchBurst {
		if box, err := d.signer(from(t, "192.0.2.1:1"), u, refs[0].ID); err != nil || box.ID != refs[0].ID {
			t.Fatalf("with the host: %+v, %v", box, err)
		}
	}
	for n := range 2 * maxAddresses {
		d.searches.limit(sender(from(t, fmt.Sprintf("10.0.%d.%d:1", n/256, n%256))))
	}
	if len(d.searches.of) > maxAddresses {
		t.Errorf("the searches of %d addresses are counted", len(d.searches.of))
	}
}

// Whoever names sandboxes that do not exist has the farm list what is open a few times a second, however many ask, and delays others by no more.
func TestNamedSandboxesAreLookedForTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, refs := searching(t, 2)
		lists, open, fault := 0, refs[:1], error(nil)
		d.Opened = func(context.Context) ([]farm.Ref, error) {
			lists++
			time.Sleep(10 * time.Millisecond) // by the clock of the bubble
			return open, fault
		}
		named := func(ref farm.Ref) (time.Duration, error) {
			began := time.Now()
			box, err := d.signer(from(t, "192.0.2.1:1"), urlBy(t, d, ref), ref.ID)
			if err == nil && (box.ID != ref.ID || box.Tenant != ref.Tenant) {
				t.Errorf("the sandbox is %+v", box)
			}
			return time.Since(began), err
		}
		if _, err := named(farm.Ref{Tenant: "acme", ID: "sbx"}); farm.CodeOf(err) != farm.CodeUnauthorized || lists != 0 {
			t.Errorf("what is no id: %v, %d lists", err, lists)
		}
		if took, err := named(refs[0]); err != nil || took != 10*time.Millisecond {
			t.Errorf("one that is open: %v after %s", err, took)
		}
		flood, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		var strangers sync.WaitGroup
		for range 100 {
			strangers.Go(func() {
				for flood.Err() == nil {
					if _, err := named(farm.Ref{Tenant: "acme", ID: farm.NewID(farm.SandboxPrefix)}); farm.CodeOf(err) != farm.CodeUnauthorized {
						t.Errorf("one that is not there: %v", err)
					}
				}
			})
		}
		time.Sleep(5*time.Second + time.Millisecond)
		if took, err := named(refs[0]); err != nil || took != 0 {
			t.Errorf("one that is known, beside a flood: %v after %s", err, took)
		}
		if took, err := named(refs[1]); farm.CodeOf(err) != farm.CodeUnauthorized || took > 2*listPause {
			t.Errorf("one that is not open yet: %v after %s", err, took)
		}
		open = refs
		if took, err := named(refs[1]); err != nil || took > 2*listPause {
			t.Errorf("one that was opened, beside a flood: %v after %s", err, took)
		}
		strangers.Wait()
		if bound := int(11 * time.Second / listPause); lists > bound {
			t.Errorf("%d lists in ten seconds, at most %d are due", lists, bound)
		}
		fault = errors.New("away")
		newest := farm.Ref{Tenant: "acme", ID: farm.NewID(farm.SandboxPrefix)}
		open = append(open, newest)
		if _, err := named(newest); !errors.Is(err, fault) {
			t.Errorf("where the list fails: %v", err)
		}
		if took, err := named(refs[0]); err != nil || took != 0 {
			t.Errorf("one that is known, where the list fails: %v after %s", err, took)
		}
		fault = nil
		if _, err := named(newest); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		left, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := d.signer(from(t, "192.0.2.1:1").WithContext(left), signedURL{}, farm.NewID(farm.SandboxPrefix)); !errors.Is(err, context.Canceled) {
			t.Errorf("who has left: %v", err)
		}
	})
}

// What is no signature is refused before anything is searched.
func TestWhatIsNoSignatureIsNotSearchedFor(t *testing.T) {
	t.Parallel()
	d, _ := searching(t, 1)
	d.Opened = func(context.Context) ([]farm.Ref, error) { t.Error("all sandboxes were listed"); return nil, nil }
	whole := base64.RawStdEncoding.EncodeToString(make([]byte, sha256.Size))
	for _, signature := range []string{"", "x", whole[1:], whole + "AA", whole + "=", strings.Repeat("*", len(whole))} {
		r := from(t, "192.0.2.1:1")
		r.URL.RawQuery = url.Values{"path": {"a"}, "signature": {signatureForm + signature}}.Encode()
		for range 2 * signerBurst / searchCost {
			if _, err := d.Open(r, false); farm.CodeOf(err) != farm.CodeUnauthorized {
				t.Fatalf("%q: %v", signature, err)
			}
		}
	}
	if len(d.searches.of) != 0 {
		t.Error("searches were counted")
	}
}

// What is hashed for each token is bounded: a path as everywhere, and little beside it.
func TestSignedTextIsBounded(t *testing.T) {
	t.Parallel()
	d, _ := searching(t, 1)
	const until = "4102444800"
	whole := base64.RawStdEncoding.EncodeToString(make([]byte, sha256.Size))
	for extra, ok := range map[int]bool{-1: true, 0: true, 1: false} {
		for path, rest := range map[int]int{farm.MaxPathBytes + extra: 0, 1: maxSignedBytes + extra - len(until)} {
			r := from(t, "192.0.2.1:1")
			r.URL.RawQuery = url.Values{
				"path": {strings.Repeat("p", path)}, "username": {strings.Repeat("u", rest)}, "signature_expiration": {until}, "signature": {signatureForm + whole},
			}.Encode()
			if _, signed, err := d.urlOf(r); !signed || (err == nil) != ok || !ok && farm.CodeOf(err) != farm.CodeUnauthorized {
				t.Errorf("a path of %d bytes, a user of %d: signed %v, %v", path, rest, signed, err)
			}
		}
	}
}

// Few requests wait for a search, of an address at most half of those that others leave, and none whose address has used up its searches: nobody takes the
// connection of a request that waits for the farm.
func TestFewWaitForASearch(t *testing.T) {
	t.Parallel()
	d, refs := searching(t, 1)
	u := urlBy(t, d, refs[0])
	const own = maxSearching / 2
	for n := range own + 1 {
		_, err := d.signer(from(t, "192.0.2.1:1"), u, "")
		if ok := n < own; (err == nil) != ok || !ok && farm.CodeOf(err) != farm.CodeExhausted {
			t.Errorf("beside %d searches of the address: %v", n, err)
		}
		if _, err := d.signer(from(t, "192.0.2.2:1"), u, ""); err != nil {
			t.Errorf("from another address, beside %d searches: %v", n, err)
		}
		d.searches.places.Ask("192.0.2.1")
	}
	d, refs = searching(t, 1)
	u = urlBy(t, d, refs[0])
	d.searches.limit(sender(from(t, "192.0.2.1:1"))).ReserveN(d.Now(), signerBurst)
	d.searches.turn <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.signer(from(t, "192.0.2.1:1").WithContext(ctx), u, ""); farm.CodeOf(err) != farm.CodeExhausted {
		t.Errorf("from an address that has used up its searches, while one is made: %v", err)
	}
}

// Searches are made one after the other; who leaves the line does not wait on.
func TestSearchesTakeTurns(t *testing.T) {
	t.Parallel()
	d, refs := searching(t, 1)
	u := urlBy(t, d, refs[0])
	d.searches.turn <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.signer(from(t, "192.0.2.1:1").WithContext(ctx), u, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	<-d.searches.turn
	if _, err := d.signer(from(t, "192.0.2.1:1"), u, ""); err != nil {
		t.Error(err)
	}
}
