package farm

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

// Prefixes of ids.
const (
	SandboxPrefix  = "sbx_"
	JobPrefix      = "job_"
	ArtifactPrefix = "art_"
	WorkerPrefix   = "wrk_"
	NodePrefix     = "node_"
	RequestPrefix  = "req_"
	KeyPrefix      = "key_"
	AuditPrefix    = "aud_"
)

// idBytes is 128 bits: ids cannot be guessed, so they may appear in links and logs of the owner.
const idBytes = 16

// idText is the length of an id after its prefix: 26 characters of base32.
const idText = 26

var idEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// NewID makes an id: the prefix and 128 random bits.
func NewID(prefix string) string {
	var b [idBytes]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime ends the process when the system has no randomness
	return prefix + idEncoding.EncodeToString(b[:])
}

// DerivedID makes the same id from the same parts, so that repeated work names its results alike. It is as hard to guess as the parts, one of
// which must be a random id.
func DerivedID(prefix string, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return prefix + idEncoding.EncodeToString(sum[:idBytes])
}

// ValidID reports whether s has the form of an id with this prefix.
func ValidID(prefix, s string) bool {
	rest, ok := strings.CutPrefix(s, prefix)
	if !ok || len(rest) != idText {
		return false
	}
	raw, err := idEncoding.DecodeString(rest)
	return err == nil && idEncoding.EncodeToString(raw) == rest // the decoder skips line breaks and ignores spare bits
}
