package budget

import (
	"bytes"
	"context"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Values counts the values of a JSON text, without keys; it never undercounts. A value of one byte takes dozens in memory, so
// decoders of untrusted JSON count first.
func Values(text []byte) int {
	n := 1
	for {
		at := bytes.IndexAny(text, `"[{,`)
		if at < 0 {
			return n
		}
		c := text[at]
		text = text[at+1:]
		if c != '"' {
			n++
			continue
		}
		text = text[stringEnd(text):]
	}
}

// stringEnd is the offset after the closing quotation mark of a string.
func stringEnd(text []byte) int {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
	}
	return len(text)
}

// valueWeight is what a value takes in memory beside its text, in bytes: an empty array in a list of any takes that.
const valueWeight = 64

// JSONSize is the size of a JSON text for Core and Decoding: a short text of many values takes long, too.
func JSONSize(text []byte) int {
	if len(text) > SmallBytes {
		return len(text)
	}
	return len(text) + Values(text)*valueWeight
}

// ChargeValues is called before a body that ReadAll read is decoded as JSON. It charges the request (see Charge) with what the values take
// beyond BodyWeight, and returns how much that is. More than farm.MaxBodyValues values are refused with CodeTooLarge.
func ChargeValues(ctx context.Context, text []byte) (int64, error) {
	return ChargeCounted(ctx, Values(text), len(text))
}

// ChargeCounted is ChargeValues for a body of another format, of size bytes, whose values the caller has counted.
func ChargeCounted(ctx context.Context, values, size int) (int64, error) {
	if values > farm.MaxBodyValues {
		return 0, farm.Errorf(farm.CodeTooLarge, "the body has more than %d values, which is the limit: send less at once, and large data as a file", farm.MaxBodyValues)
	}
	more := max(0, int64(values)*valueWeight-int64(size)*(BodyWeight-1))
	return more, Charge(ctx, more)
}
