package blob

import (
	"strings"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxKey is the longest key that S3 takes, in bytes.
const maxKey = 1024

// checkKey rejects keys that services treat differently: some store a key as a path on a disk.
func checkKey(key string) error {
	switch {
	case key == "":
		return farm.Invalidf("An object needs a key.")
	case len(key) > maxKey:
		return farm.Invalidf("An object's key has at most %d bytes.", maxKey)
	case !utf8.ValidString(key) || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return farm.Invalidf("An object's key is UTF-8 without control characters.")
	}
	for part := range strings.SplitSeq(key, "/") {
		if part == "" || part == "." || part == ".." {
			return farm.Invalidf("An object's key has no empty part, and none that is %q or %q.", ".", "..")
		}
	}
	return nil
}
