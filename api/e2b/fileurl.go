package e2b

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/time/rate"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// An SDK signs the URL of a file by itself: with a hash of the path, the operation, the user and the access token. The URL has no token, and
// names the sandbox only if its host does. So the farm makes the access tokens of the sandboxes that are open, one after the other, and looks
// whose it is.

const (
	signatureForm = "v1_"
	// maxSigners is how many tokens are tried for one URL: some ten milliseconds.
	maxSigners = 20_000
	// searchRate is how many URLs are looked up in a second, and how many at once at first. Anyone may send one.
	searchRate = 50
)

// searches limits the search for the sandboxes of signed URLs: one at a time, and so many in a second.
type searches struct {
	rate *rate.Limiter
	turn chan struct{}
}

func newSearches() searches {
	return searches{rate: rate.NewLimiter(searchRate, searchRate), turn: make(chan struct{}, 1)}
}

// signedURL is what a signed URL says.
type signedURL struct {
	signature string
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
	u = signedURL{signature: signature, text: [2]string{q.Get("path") + ":" + operation + ":" + q.Get("username") + ":", ""}}
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
	return hmac.Equal([]byte(base64.RawStdEncoding.EncodeToString(sum[:])), []byte(u.signature))
}

// signer finds the sandbox whose access token signed a URL, among all that are open or, if the host names one, at that.
func (d *Door) signer(ctx context.Context, u signedURL, named string) (Box, error) {
	if !d.searches.rate.Allow() {
		return Box{}, farm.Errorf(farm.CodeExhausted, "Too many signed URLs are being looked up. Try again in a second.")
	}
	select {
	case d.searches.turn <- struct{}{}:
		defer func() { <-d.searches.turn }()
	case <-ctx.Done():
		return Box{}, ctx.Err() //nolint:wrapcheck // the caller has left
	}
	open, err := d.Opened(ctx)
	if err != nil {
		return Box{}, err
	}
	keys, tried := map[string][]string{}, 0
	for _, ref := range open {
		if named != "" && ref.ID != named {
			continue
		}
		if _, ok := keys[ref.Tenant]; !ok {
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
	return Box{}, farm.Errorf(farm.CodeUnauthorized, "The signature of this URL is not valid, or its sandbox has ended, or the key that made it was revoked.")
}
