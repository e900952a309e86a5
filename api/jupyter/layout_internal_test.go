package jupyter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

func TestSplitReadsWhatJoinWrites(t *testing.T) {
	t.Parallel()
	parts := [][]byte{[]byte("shell"), []byte("{}"), nil, {0, 1, 2}}
	for name, l := range map[string]layout{"v1": layoutV1(), "binary": layoutBinary()} {
		data := l.join(parts)
		got, err := l.split(data, len(parts)+1)
		if err != nil || len(got) != len(parts) {
			t.Fatalf("%s: %d parts, %v", name, len(got), err)
		}
		for i := range parts {
			if !bytes.Equal(got[i], parts[i]) {
				t.Errorf("%s: part %d is %q, want %q", name, i, got[i], parts[i])
			}
		}
	}
}

// layoutV1 has an offset for the end, layoutBinary has none.
func TestSplitBoundsTheOffsets(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		layout layout
		limit  int
	}{"v1": {layoutV1(), 4}, "binary": {layoutBinary(), 3}} {
		for extra, want := range map[int]error{-1: nil, 0: nil, 1: errOffsets} {
			data := c.layout.join(make([][]byte, 3+extra))
			if _, err := c.layout.split(data, c.limit); !errors.Is(err, want) {
				t.Errorf("%s with %d parts: %v, want %v", name, 3+extra, err, want)
			}
		}
	}
}

func TestSplitRefusesWrongOffsets(t *testing.T) {
	t.Parallel()
	offsets := func(numbers ...uint64) []byte {
		var out []byte
		for _, n := range numbers {
			out = binary.LittleEndian.AppendUint64(out, n)
		}
		return append(out, "abcd"...)
	}
	for name, data := range map[string][]byte{
		"nothing": nil, "half a number": {1, 2, 3}, "no offsets": offsets(0), "only the end": offsets(1, 20), "more offsets than data": offsets(1 << 60),
		"inside the offsets": offsets(2, 8, 28), "beyond the data": offsets(2, 24, 29), "backwards": offsets(3, 26, 25, 28),
	} {
		if parts, err := layoutV1().split(data, 100); !errors.Is(err, errOffsets) {
			t.Errorf("%s: %q, %v", name, parts, err)
		}
	}
	if parts, err := layoutV1().split(offsets(2, 24, 28), 100); err != nil || string(parts[0]) != "abcd" {
		t.Errorf("right offsets: %q, %v", parts, err)
	}
}
