package budget

import (
	"context"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Values counts the values of a JSON text, without keys; it never undercounts. A value of one byte takes dozens in memory, so
// decoders of untrusted JSON count first.
func Values(text []byte) int {
	n := 1
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '[', '{', ',':
			n++
		case '"':
			i += stringEnd(text[i+1:])
		}
	}
	return n
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

// Decoding takes a core (see TakeCore) for the decoding of a body of size bytes that ReadAll has read, and charges the request (see Charge) with what its
// values take beyond BodyWeight; count counts them. A short body is charged first, since that may wait, and so its values count for the core. A large one
// is counted on the core, and does not wait, since ReadAll has charged it. More than farm.MaxBodyValues values are refused with CodeTooLarge. It returns
// the size of the body for Core: a short text of many values takes long, too.
func Decoding(ctx context.Context, size int, count func() int) (int, error) {
	large := size > SmallBytes
	if large {
		if err := TakeCore(ctx, size); err != nil {
			return 0, err
		}
	}
	values := count()
	if err := chargeValues(ctx, values, size); err != nil {
		LeaveCore(ctx)
		return 0, err
	}
	size += values * valueWeight
	if large {
		return size, nil
	}
	return size, TakeCore(ctx, size)
}

func chargeValues(ctx context.Context, values, size int) error {
	if values > farm.MaxBodyValues {
		return farm.Errorf(farm.CodeTooLarge, "the body has more than %d values, which is the limit: send less at once, and large data as a file", farm.MaxBodyValues)
	}
	return Charge(ctx, max(0, int64(values)*valueWeight-int64(size)*(BodyWeight-1)))
}

// Quoting charges the request (see Charge) with what a text of its answer takes beyond BodyWeight as a JSON string, in which most control characters
// and bytes that are not UTF-8 are six bytes each: of each of its copies, the encoder has it once, and the answer once more. What does not fit into the
// tenant's share is refused with CodeExhausted.
func Quoting[T ~string | ~[]byte](ctx context.Context, text T, copies int) error {
	n := farm.Quoted(text) - len(text)
	for i := range len(text) {
		if c := text[i]; c == '<' || c == '>' || c == '&' {
			n += 5 // of \u003c
		}
	}
	return charge(ctx, 2*int64(copies*n), (*Hold).addWhole)
}
