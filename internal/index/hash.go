package index

import (
	"crypto/sha1" //nolint:gosec // old npm packages have no better hash; it guards against damage
	"crypto/sha256"
	"crypto/sha512"
	"hash"
)

// newHash makes the hash of an algorithm that files are checked with; nil for others. md5 does not count as a hash.
func newHash(algorithm string) hash.Hash {
	switch algorithm {
	case "sha256":
		return sha256.New()
	case "sha512":
		return sha512.New()
	case "sha384":
		return sha512.New384()
	case "sha1":
		return sha1.New() //nolint:gosec // see above
	}
	return nil
}

// bestHash picks the hash that a file is checked with and known by; "" when there is none.
func bestHash(hashes map[string]string) (algorithm, value string) {
	for _, algorithm := range []string{"sha256", "sha512", "sha384", "sha1"} {
		if value := hashes[algorithm]; value != "" {
			return algorithm, value
		}
	}
	return "", ""
}
