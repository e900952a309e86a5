package blob_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"testing"

	"github.com/sandfarm/sandfarm/internal/blob"
)

// most is what is hashed at once.
const limit = 64 << 10

// pieces notes the longest Write of a hash, or Read of a source.
type pieces struct {
	hash.Hash
	r       io.Reader
	longest int
}

func (p *pieces) Write(data []byte) (int, error) {
	p.longest = max(p.longest, len(data))
	return p.Hash.Write(data)
}

func (p *pieces) Read(data []byte) (int, error) {
	p.longest = max(p.longest, len(data))
	return p.r.Read(data)
}

// A hash cannot be interrupted, so long data is hashed in pieces: in one, it would hold up the collector, and with it all requests.
func TestLongDataIsHashedInPieces(t *testing.T) {
	t.Parallel()
	data := bytes.Repeat([]byte("0123456789abcdef"), 9<<16)
	want := sha256.Sum256(data)
	sum := &pieces{Hash: sha256.New()}
	if err := blob.Hash(sum, bytes.NewReader(data)); err != nil || sum.longest > limit || !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Errorf("%d bytes are hashed at once to %x, %v", sum.longest, sum.Sum(nil), err)
	}
	s := newStore(t, newConfig(t, endpoint))
	if err := s.EnsureBucket(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{1 << 20, int64(len(data)), -1} {
		source := &pieces{r: bytes.NewReader(data)}
		info, err := s.Put(t.Context(), "pieces", source, min(size, int64(len(data))), blob.PutOptions{})
		if err != nil || source.longest > limit || size != 1<<20 && info.SHA256 != hex.EncodeToString(want[:]) {
			t.Errorf("a source of %d bytes is read %d at a time: %+v, %v", size, source.longest, info, err)
		}
	}
}
