// Package secret seals the secrets of sandboxes for the time that they are stored, and has the authority of certificates that each sandbox
// with secrets trusts. What is sealed can be opened for the same sandbox only, by a process with one of the farm's keys.
package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// KeyBytes is the size of a key, of AES-256.
const KeyBytes = 32

// format is the first byte of what Seal makes.
const format = 1

// ErrSealed says that none of the keys opens a sealed bundle: another key or another sandbox sealed it, or it was changed.
var ErrSealed = errors.New("none of the keys opens the sealed secrets")

// Keys seal with the first key and open with each. A nil *Keys has none.
type Keys struct{ ciphers []cipher.AEAD }

// ParseKeys reads keys in base64, the one that seals first. Without any it returns nil. The error does not contain a key.
func ParseKeys(current string, old ...string) (*Keys, error) {
	if current == "" {
		if len(old) > 0 {
			return nil, errors.New("there are old keys and no current one")
		}
		return nil, nil // no keys
	}
	k := &Keys{}
	for _, text := range append([]string{current}, old...) {
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(key) != KeyBytes {
			return nil, fmt.Errorf("a key is %d random bytes in base64 (openssl rand -base64 %d)", KeyBytes, KeyBytes)
		}
		if err := k.add(key); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// NewKeys makes keys of one key of KeyBytes bytes.
func NewKeys(key []byte) (*Keys, error) {
	k := &Keys{}
	return k, k.add(key)
}

func (k *Keys) add(key []byte) error {
	block, err := aes.NewCipher(key)
	if err != nil {
		return fmt.Errorf("use a key: %w", err)
	}
	sealer, err := cipher.NewGCM(block)
	if err != nil {
		return fmt.Errorf("use a key: %w", err)
	}
	k.ciphers = append(k.ciphers, sealer)
	return nil
}

// Bundle is what is sealed for a sandbox.
type Bundle struct {
	Values    map[string]string `json:"values"` // by the name of the secret
	Authority *Authority        `json:"authority"`
}

// Seal seals a bundle for a sandbox.
func (k *Keys) Seal(sandbox farm.Ref, b Bundle) ([]byte, error) {
	text, err := json.Marshal(b)
	if err != nil {
		return nil, errors.New("encode secrets") // the cause could quote a value
	}
	sealer := k.ciphers[0]
	sealed := make([]byte, 1+sealer.NonceSize(), 1+sealer.NonceSize()+len(text)+sealer.Overhead())
	sealed[0] = format
	if _, err := rand.Read(sealed[1:]); err != nil {
		return nil, fmt.Errorf("seal secrets: %w", err)
	}
	return sealer.Seal(sealed, sealed[1:], text, bound(sandbox)), nil
}

// Open opens what was sealed for a sandbox; else ErrSealed.
func (k *Keys) Open(sandbox farm.Ref, sealed []byte) (Bundle, error) {
	var b Bundle
	if k == nil || len(sealed) == 0 || sealed[0] != format {
		return b, ErrSealed
	}
	for _, c := range k.ciphers {
		end := 1 + c.NonceSize()
		if len(sealed) < end {
			break
		}
		text, err := c.Open(nil, sealed[1:end], sealed[end:], bound(sandbox))
		if err == nil && json.Unmarshal(text, &b) == nil {
			return b, nil
		}
	}
	return Bundle{}, ErrSealed
}

// bound is the data that a bundle is bound to: it opens for one sandbox of one tenant. Neither name can have the byte between them.
func bound(sandbox farm.Ref) []byte {
	return []byte("sandfarm secrets\x00" + sandbox.Tenant + "\x00" + sandbox.ID)
}
