package access_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/access"
)

type keyStore struct {
	key []byte
	err error
}

func (s keyStore) LinkKey(context.Context) ([]byte, error) { return s.key, s.err }

func TestOnlyTheFarmsOwnTokensOpen(t *testing.T) {
	t.Parallel()
	s := access.NewSigner(keyStore{key: bytes.Repeat([]byte{1}, 32)}, time.Now)
	token, err := s.Seal(t.Context(), "kind1", "acme", "")
	if err != nil {
		t.Fatal(err)
	}
	if parts, err := s.Open(t.Context(), token); err != nil || !slices.Equal(parts, []string{"kind1", "acme", ""}) {
		t.Errorf("%q, %v", parts, err)
	}
	other, err := access.NewSigner(keyStore{key: bytes.Repeat([]byte{2}, 32)}, time.Now).Seal(t.Context(), "kind1", "acme", "")
	if err != nil {
		t.Fatal(err)
	}
	payload, code, _ := strings.Cut(token, ".")
	longer, err := s.Seal(t.Context(), strings.Repeat("x", 600))
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]string{
		"empty": "", "of another farm": other, "cut": payload, "without a code": payload + ".",
		"with other words": "x" + payload + "." + code, "too long": longer,
	} {
		if _, err := s.Open(t.Context(), bad); !errors.Is(err, access.ErrToken) {
			t.Errorf("a token %s: %v", name, err)
		}
	}
}

func TestWithoutAKeyNothingOpens(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]keyStore{"away": {err: errors.New("away")}, "short": {key: []byte("short")}} {
		s := access.NewSigner(store, time.Now)
		if _, err := s.Seal(t.Context(), "a"); err == nil {
			t.Errorf("%s: sealed", name)
		}
		if _, err := s.Open(t.Context(), "YQ.YQ"); err == nil || errors.Is(err, access.ErrToken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
