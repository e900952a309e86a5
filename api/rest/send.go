package rest

import (
	"fmt"
	"io"
	"net/http"
	"strconv"

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
	n, err := writeGzip(c.Writer, content)
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
