package e2b

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandfarm/sandfarm/api/signed"
	"github.com/sandfarm/sandfarm/internal/farm"
)

type linkKey struct{}

func (linkKey) LinkKey(context.Context) ([]byte, error) { return bytes.Repeat([]byte{1}, 32), nil }

// searching is a Door with sandboxes and one key, for which searches are not limited.
func searching(t *testing.T, sandboxes int) (*Door, []farm.Ref) {
	t.Helper()
	refs := make([]farm.Ref, sandboxes)
	for i := range refs {
		refs[i] = farm.Ref{Tenant: "acme", ID: fmt.Sprintf("%s%026d", farm.SandboxPrefix, i)}
	}
	d := New(Deps{
		Signer: signed.New(linkKey{}, time.Now), Now: time.Now,
		Opened: func(context.Context) ([]farm.Ref, error) { return refs, nil },
		Keys:   func(context.Context, string) ([]string, error) { return []string{"key_1"}, nil },
	})
	d.searches.rate = rate.NewLimiter(rate.Inf, 0)
	return d, refs
}

// urlBy is a URL that a sandbox's token has signed.
func urlBy(t *testing.T, d *Door, ref farm.Ref) signedURL {
	t.Helper()
	token, err := d.token(t.Context(), accessToken, Box{Tenant: ref.Tenant, ID: ref.ID, Key: "key_1"})
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("a:read::" + token))
	return signedURL{signature: base64.RawStdEncoding.EncodeToString(sum[:]), text: [2]string{"a:read::", ""}}
}

func TestSignersAreBounded(t *testing.T) {
	t.Parallel()
	for extra, found := range map[int]bool{-1: true, 0: true, 1: false} {
		d, refs := searching(t, maxSigners+extra)
		last := refs[len(refs)-1]
		box, err := d.signer(t.Context(), urlBy(t, d, last), "")
		if found && (err != nil || box.ID != last.ID || box.Tenant != "acme" || box.Key != "key_1") {
			t.Errorf("%d sandboxes: %+v, %v", len(refs), box, err)
		}
		if !found && (farm.CodeOf(err) != farm.CodeUnauthorized || !strings.Contains(err.Error(), "api.preview_domain")) {
			t.Errorf("%d sandboxes: %+v, %v", len(refs), box, err)
		}
		if box, err := d.signer(t.Context(), urlBy(t, d, last), last.ID); err != nil || box.ID != last.ID { // the host names it
			t.Errorf("%d sandboxes, one named: %+v, %v", len(refs), box, err)
		}
	}
}

func TestSearchesAreBounded(t *testing.T) {
	t.Parallel()
	d, refs := searching(t, 1)
	d.searches.rate = rate.NewLimiter(0, searchRate) // no time passes
	u := urlBy(t, d, refs[0])
	for n := 1; n <= searchRate; n++ {
		if _, err := d.signer(t.Context(), u, ""); err != nil {
			t.Fatalf("search %d: %v", n, err)
		}
	}
	if _, err := d.signer(t.Context(), u, ""); farm.CodeOf(err) != farm.CodeExhausted {
		t.Errorf("search %d: %v", searchRate+1, err)
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
	if _, err := d.signer(ctx, u, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	<-d.searches.turn
	if _, err := d.signer(t.Context(), u, ""); err != nil {
		t.Error(err)
	}
}
