package blob

import (
	"fmt"
	"hash"
	"io"
)

// hashPiece is how much is hashed at a time. Go does not interrupt a hash in the middle of a Write: one of a whole part takes milliseconds,
// for which a garbage collection that begins holds up every request of the process.
const hashPiece = 64 << 10

// Hash adds all of r to a hash, in pieces.
func Hash(sum hash.Hash, r io.Reader) error {
	// The wrappers hide WriteTo and ReadFrom, which would pass everything at once.
	_, err := io.CopyBuffer(struct{ io.Writer }{sum}, struct{ io.Reader }{r}, make([]byte, hashPiece))
	if err != nil {
		return fmt.Errorf("hash: %w", err)
	}
	return nil
}
