package e2b

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// An SDK signs the URL of a file by itself: with a hash of the path, the operation, the user and the access token. The URL has no token, and
// names the sandbox only if its host does. Then only the access tokens of that sandbox are tried. Otherwise the farm makes those of all that are
// open, one after the other, and looks whose it is: anyone may ask for that, so an address gets so many searches, and only what has the form of a
// signature is searched for.

const (
	signatureForm = "v1_"
	// maxSigners is how many tokens are tried for one URL: some ten milliseconds.
	maxSigners = 20_000
	// searchRate is how many searches an address gets in a second, and searchBurst how many at once at first.
	searchRate, searchBurst = 5, 50
	// maxAddresses is of how many addresses the searches are counted.
	maxAddresses = 4096
)

// searches limits the search for the sandboxes of signed URLs that name none: one at a time, and so many for each address.
type searches struct {
	turn chan struct{}

	mu sync.Mutex
	of map[string]*rate.Limiter // by address
}

func newSearches() *searches {
	return &searches{turn: make(chan struct{}, 1), of: map[string]*rate.Limiter{}}
}

// allow reports whether the sender of a request may search.
func (s *searches) allow(r *http.Request, now time.Time) bool {
	address := sender(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[address] == nil {
		if len(s.of) >= maxAddresses {
			clear(s.of)
		}
		s.of[address] = rate.NewLimiter(searchRate, searchBurst)
	}
	return s.of[address].AllowN(now, 1)
}

// sender is the address that a request comes from; of IPv6 the network, since a sender has all of its addresses.
func sender(r *http.Request) string {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	address := from.Addr().Unmap().WithZone("")
	if network, err := address.Prefix(64); err == nil && address.Is6() {
		return network.String()
	}
	return address.String()
}

// signedURL is what a signed URL says.
type signedURL struct {
	signature []byte
	text      [2]string // what is hashed before and after the token
}

// urlOf reads a signed URL; ok is false for a request that has none.
func (d *Door) urlOf(r *http.Request) (u signedURL, ok bool, err error) {
	// The parameters are in the path's own query: a form in the body signs nothing.
	q, _ := url.ParseQuery(r.URL.RawQuery) // what cannot be read is not signed
	signature, ok := strings.CutPrefix(q.Get("signature"), signatureForm)
	if !ok || !strings.HasSuffix(r.URL.Path, "/files") {
		return u, false, nil
	}
	operation := "read"
	if r.Method == http.MethodPost {
		operation = "write"
	}
	sum, err := base64.RawStdEncoding.Strict().DecodeString(signature)
	if err != nil || len(sum) != sha256.Size {
		return u, true, errSignature()
	}
	u = signedURL{signature: sum, text: [2]string{q.Get("path") + ":" + operation + ":" + q.Get("username") + ":", ""}}
	if until := q.Get("signature_expiration"); until != "" {
		end, err := strconv.ParseInt(until, 10, 64)
		if err != nil {
			return u, true, farm.Errorf(farm.CodeUnauthorized, "signature_expiration is not a number of seconds since 1970.")
		}
		if d.Now().Unix() > end {
			return u, true, farm.Errorf(farm.CodeUnauthorized, "signature is already expired")
		}
		u.text[1] = ":" + until
	}
	return u, true, nil
}

// by reports whether a token signed the URL.
func (u signedURL) by(token string) bool {
	sum := sha256.Sum256([]byte(u.text[0] + token + u.text[1]))
	return hmac.Equal(sum[:], u.signature)
}

func errSignature() error {
	return farm.Errorf(farm.CodeUnauthorized, "The signature of this URL is not valid, or its sandbox has ended, or the key that made it was revoked.")
}

// signer finds the sandbox whose access token signed the URL of a request: the one that its host names, or else among all that are open.
func (d *Door) signer(r *http.Request, u signedURL, named string) (Box, error) {
	ctx := r.Context()
	if named != "" {
		ref, ok, err := d.Find(ctx, named)
		if err != nil {
			return Box{}, err
		}
		if !ok {
			return Box{}, errSignature()
		}
		return d.signerAmong(ctx, u, []farm.Ref{ref})
	}
	if !d.searches.allow(r, d.Now()) {
		return Box{}, farm.Errorf(farm.CodeExhausted, "Too many signed URLs come from this address. Try again in a second, or set api.preview_domain: hosts below it name the sandbox.")
	}
	select {
	case d.searches.turn <- struct{}{}:
		defer func() { <-d.searches.turn }()
	case <-ctx.Done():
		return Box{}, ctx.Err()
	}
	open, err := d.Opened(ctx)
	if err != nil {
		return Box{}, err
	}
	return d.signerAmong(ctx, u, open)
}

func (d *Door) signerAmong(ctx context.Context, u signedURL, open []farm.Ref) (Box, error) {
	keys, tried := map[string][]string{}, 0
	for _, ref := range open {
		if _, ok := keys[ref.Tenant]; !ok {
			var err error
			if keys[ref.Tenant], err = d.Keys(ctx, ref.Tenant); err != nil {
				return Box{}, err
			}
		}
		for _, key := range keys[ref.Tenant] {
			if tried++; tried > maxSigners {
				return Box{}, farm.Errorf(farm.CodeUnauthorized, "The farm has too many sandboxes and keys to find whose this URL is. With api.preview_domain its host says so.")
			}
			box := Box{Tenant: ref.Tenant, ID: ref.ID, Key: key}
			token, err := d.token(ctx, accessToken, box)
			if err != nil {
				return Box{}, err
			}
			if u.by(token) {
				return box, nil
			}
		}
	}
	return Box{}, errSignature()
}
