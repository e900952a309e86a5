package keyring

import (
	"encoding/hex"
	"strings"

	"github.com/sandfarm/sandfarm/api/wire"
)

// fromE2B returns the key that is sent in the form of wire.E2BKey. One that only looks like it is a key of its own.
func fromE2B(key string) (plain string, ok bool) {
	text, ok := strings.CutPrefix(key, wire.E2BPrefix)
	raw, err := hex.DecodeString(text)
	return string(raw), ok && err == nil && len(raw) > 0
}
