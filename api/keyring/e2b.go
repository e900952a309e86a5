package keyring

import (
	"encoding/hex"
	"strings"
)

// e2bPrefix begins the only form of keys that the SDKs of E2B took before November 2026.
const e2bPrefix = "e2b_"

// E2BForm is a key in the form that the older SDKs of E2B check: the same key, its bytes in hex.
func E2BForm(key string) string { return e2bPrefix + hex.EncodeToString([]byte(key)) }

// fromE2B returns the key that is sent in that form. One that only looks like it is a key of its own.
func fromE2B(key string) (plain string, ok bool) {
	text, ok := strings.CutPrefix(key, e2bPrefix)
	raw, err := hex.DecodeString(text)
	return string(raw), ok && err == nil && len(raw) > 0
}
