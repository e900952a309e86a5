package index

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/sandfarm/sandfarm/internal/budget"
)

const (
	// valueMax is the longest value that is read at once, such as a version of an npm package; real ones have under a MiB.
	valueMax = 8 << 20
	// valuesMax is how many values one may contain, since each takes dozens of bytes once it is decoded; real ones have some hundred.
	valuesMax = 1 << 16
)

// errValueSize is the error for a value of more than valueMax bytes.
var errValueSize = fmt.Errorf("a value in it has more than %d MiB", valueMax>>20)

// newDecoder decodes a page value by value. It fails at a value of more than valueMax bytes, so that it never buffers a page.
func newDecoder(body io.Reader) *json.Decoder {
	s := &stepped{r: body}
	s.dec = json.NewDecoder(s)
	return s.dec
}

// stepped is what a decoder reads from. The decoder only reads on when all that it has is the beginning of one value.
type stepped struct {
	r    io.Reader
	dec  *json.Decoder
	read int64
}

// Read reads on if the value is not too long yet.
func (s *stepped) Read(p []byte) (int, error) {
	held := s.read - s.dec.InputOffset()
	if held > valueMax {
		return 0, errValueSize
	}
	n, err := s.r.Read(p[:min(int64(len(p)), valueMax+1-held)])
	s.read += int64(n)
	return n, err
}

// value reads the next value.
func value(dec *json.Decoder, into any) error {
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		return err
	}
	if len(raw) > valueMax {
		return errValueSize
	}
	if budget.Values(raw) > valuesMax {
		return fmt.Errorf("a value in it has more than %d values", valuesMax)
	}
	return json.Unmarshal(raw, into)
}
