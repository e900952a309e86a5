package rest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Part is the part of a file that the Range header of a request asks for; partial is false if it asks for the whole. A part of no bytes is an
// error.
func Part(c *gin.Context, size int64, etag string) (offset, length int64, partial bool, err error) {
	wanted, ok := ParseRange(c.GetHeader("Range"))
	if ifRange := c.GetHeader("If-Range"); !ok || ifRange != "" && ifRange != `"`+etag+`"` {
		return 0, size, false, nil
	}
	if offset, length, ok = wanted.Within(size); !ok {
		c.Header("Content-Range", fmt.Sprintf("bytes */%d", size))
		return 0, 0, false, Refusef(http.StatusRequestedRangeNotSatisfiable, farm.CodeInvalid, "The range holds no byte of the file, which has %d.", size)
	}
	return offset, length, true, nil
}

// SendWhole sends content whole, compressed if the caller takes that, it is worth it and there is memory for it; length -1: unknown.
func SendWhole(c *gin.Context, content io.Reader, length int64) error {
	c.Header("Vary", "Accept-Encoding")
	hold := budget.Lasting(c.Request.Context()) // the caller may read slowly
	if !Compresses(c, length) || !hold.Grow(GzipBytes) {
		return SendContent(c, http.StatusOK, content, length)
	}
	defer hold.Release()
	MarkCompressed(c)
	c.Status(http.StatusOK)
	n, err := writeGzip(c.Request.Context(), c.Writer, content)
	return sent(c, n, length, err)
}

// SendContent sends content as it is.
func SendContent(c *gin.Context, status int, content io.Reader, length int64) error {
	if length >= 0 {
		c.Header("Content-Length", strconv.FormatInt(length, 10))
	}
	c.Status(status)
	n, err := io.Copy(struct{ io.Writer }{c.Writer}, content) // content is no file, which the kernel could send
	return sent(c, n, length, err)
}

// sent ends an answer. One that is not complete must break off, so that the caller does not mistake it for the whole.
func sent(c *gin.Context, n, length int64, err error) error {
	if err == nil {
		err = Send(c.Writer, nil)
	}
	if err == nil && length >= 0 && n != length {
		err = fmt.Errorf("%d bytes instead of %d", n, length)
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

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
