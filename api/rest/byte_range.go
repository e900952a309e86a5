package rest

import (
	"errors"
	"strconv"
	"strings"
)

// ByteRange is the part of a file that a Range header asks for. last -1: to the end; first -1: the last `last` bytes.
type ByteRange struct{ first, last int64 }

// ParseRange reads a Range header of one part. Other forms are ignored, as RFC 9110 allows.
func ParseRange(header string) (ByteRange, bool) {
	unit, set, ok := strings.Cut(header, "=")
	if !ok || !strings.EqualFold(strings.TrimSpace(unit), "bytes") {
		return ByteRange{}, false
	}
	from, to, ok := strings.Cut(strings.TrimSpace(set), "-")
	first, errFirst := strconv.ParseUint(from, 10, 63)
	last, errLast := strconv.ParseUint(to, 10, 63)
	if errors.Is(errLast, strconv.ErrRange) { // last is the largest number then: the range ends with the file
		errLast = nil
	}
	switch {
	case !ok:
		return ByteRange{}, false
	case from == "" && errLast == nil:
		return ByteRange{first: -1, last: int64(last)}, true
	case errFirst != nil || to != "" && (errLast != nil || last < first):
		return ByteRange{}, false
	case to == "":
		return ByteRange{first: int64(first), last: -1}, true
	default:
		return ByteRange{first: int64(first), last: int64(last)}, true
	}
}

// Within is the range in a file of a given size. ok is false if it contains no byte of the file.
func (r ByteRange) Within(size int64) (offset, length int64, ok bool) {
	switch {
	case r.first == -1:
		n := min(r.last, size)
		return size - n, n, n > 0
	case r.first >= size:
		return 0, 0, false
	case r.last == -1 || r.last >= size:
		return r.first, size - r.first, true
	default:
		return r.first, r.last - r.first + 1, true
	}
}
