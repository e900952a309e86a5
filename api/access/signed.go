package access

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
	"sync"
	"time"
)

const (
	// keyFor is how long the key is used again before it is read anew.
	keyFor = time.Minute
	// maxToken bounds a token that is looked at.
	maxToken = 512
)

// ErrToken refuses a token that this farm did not make, or not so.
var ErrToken = errors.New("the token is not of this farm")

// KeyStore has the farm's key.
type KeyStore interface {
	LinkKey(ctx context.Context) ([]byte, error)
}

// Signer makes tokens that say something, and tells those that this farm has made from all others. What they say is not secret. It is safe for
// concurrent use.
//
// The key is the farm's, one for all processes and all kinds of tokens: the first part of what a token says names its kind, and whoever
// opens a token compares it.
type Signer struct {
	store KeyStore
	now   func() time.Time

	reading sync.Mutex // held by the one who reads the key

	mu     sync.Mutex
	key    []byte
	readAt time.Time
}

// NewSigner makes a Signer. The key is read when it is needed.
func NewSigner(store KeyStore, now func() time.Time) *Signer { return &Signer{store: store, now: now} }

// code is the code of what a token says.
func (s *Signer) code(ctx context.Context, payload []byte) ([]byte, error) {
	key, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write(payload)
	return mac.Sum(nil), nil
}

// current is the key. One caller reads it anew, and the others have the one before meanwhile; so has everyone while it cannot be read.
func (s *Signer) current(ctx context.Context) ([]byte, error) {
	key, fresh := s.known()
	switch {
	case fresh:
		return key, nil
	case key == nil: // all wait for the first one
		s.reading.Lock()
	case !s.reading.TryLock():
		return key, nil
	}
	defer s.reading.Unlock()
	if key, fresh = s.known(); fresh {
		return key, nil
	}
	now := s.now()
	read, err := s.store.LinkKey(ctx)
	switch {
	case err != nil && key != nil:
		return key, nil
	case err != nil:
		return nil, err
	case len(read) < sha256.Size:
		return nil, errors.New("the key of the farm's tokens is too short")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key, s.readAt = read, now
	return read, nil
}

// known is the key as it was read, nil before; fresh says that it need not be read now.
func (s *Signer) known() (key []byte, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.key, s.key != nil && s.now().Sub(s.readAt) <= keyFor
}

// Seal makes the token that says these parts, none of which holds a NUL: letters, digits, '-', '_' and one '.'. The same parts make the same
// token.
func (s *Signer) Seal(ctx context.Context, parts ...string) (string, error) {
	payload := []byte(strings.Join(parts, "\x00"))
	code, err := s.code(ctx, payload)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(payload) + "." + base64.RawURLEncoding.EncodeToString(code), nil
}

// Open returns what a token says. ErrToken refuses it; any other error means that the key could not be read.
func (s *Signer) Open(ctx context.Context, token string) ([]string, error) {
	first, second, ok := strings.Cut(token, ".")
	if !ok || len(token) > maxToken {
		return nil, ErrToken
	}
	payload, bad := base64.RawURLEncoding.Strict().DecodeString(first)
	code, worse := base64.RawURLEncoding.Strict().DecodeString(second)
	if bad != nil || worse != nil {
		return nil, ErrToken
	}
	want, err := s.code(ctx, payload)
	if err != nil {
		return nil, err
	}
	if !hmac.Equal(code, want) {
		return nil, ErrToken
	}
	return strings.Split(string(payload), "\x00"), nil
}
