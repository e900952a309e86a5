package rest

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// GzipBytes is what compressing an answer takes in memory, and more than unpacking a body does.
	GzipBytes = 1 << 20
	// gzipFrom is the size from which compressing is worth it.
	gzipFrom = 1 << 10
	// gzipTo is how many bytes of an answer are compressed. A larger file is sent as it is, and of a directory what is beyond it is stored: a sparse
	// file costs its sandbox nothing, and a caller who receives a thousandth of it hardly more, but compressing it takes seconds of a core for each GiB.
	gzipTo = 16 << 20
)

// packedTypes are media types, or their beginnings, whose content is compressed already.
var packedTypes = []string{"image/", "audio/", "video/", "font/", "application/zip", "application/gzip", "application/pdf", "application/vnd.openxmlformats"}

// NoContentOf refuses a request that makes a directory and has a body, which would be lost.
func NoContentOf(c *gin.Context) error {
	if n, err := io.ReadFull(Body(c), make([]byte, 1)); n > 0 || err != nil && !errors.Is(err, io.EOF) {
		return BadRequestf("a path that ends in a slash makes a directory, which has no content: send no body, or a path without the slash")
	}
	return nil
}

// Unpacked is the body of a request (Body or HeldBody), unpacked if its Content-Encoding says that it is compressed, with its size; -1: unknown. Its
// reader bounds what it reads: a short body may unpack to any size.
func Unpacked(c *gin.Context, body io.Reader) (io.Reader, int64, error) {
	switch strings.ToLower(strings.TrimSpace(c.GetHeader("Content-Encoding"))) {
	case "", "identity":
		return body, c.Request.ContentLength, nil
	case "gzip", "x-gzip":
		if err := budget.Charge(c.Request.Context(), GzipBytes); err != nil {
			return nil, 0, err
		}
		return &unpacker{work: work{ctx: c.Request.Context(), from: body}}, -1, nil
	default:
		return nil, 0, Refusef(http.StatusUnsupportedMediaType, farm.CodeInvalid, "the Content-Encoding must be gzip or identity")
	}
}

// unpacker unpacks a body. It reads nothing of it before it is read itself.
type unpacker struct {
	work
	gzip *gzip.Reader
}

// Read reads what is unpacked.
func (u *unpacker) Read(p []byte) (n int, err error) {
	err = u.do(func() error {
		if u.gzip == nil {
			if u.gzip, err = gzip.NewReader(&u.work); err != nil {
				return err
			}
		}
		n, err = u.gzip.Read(p)
		return err
	})
	u.size += n
	return n, notGzip(err)
}

func notGzip(err error) error {
	if errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.Is(err, io.ErrUnexpectedEOF) {
		return BadRequestf("the body is not complete gzip, as its Content-Encoding says")
	}
	return err
}

// Compresses reports whether an answer is sent compressed: the caller takes it, and its size (-1: unknown) and type make it worth it.
func Compresses(c *gin.Context, size int64) bool {
	kind := c.Writer.Header().Get("Content-Type")
	if size >= 0 && size < gzipFrom || size > gzipTo || slices.ContainsFunc(packedTypes, func(packed string) bool { return strings.HasPrefix(kind, packed) }) {
		return false
	}
	for _, header := range c.Request.Header.Values("Accept-Encoding") {
		for part := range strings.SplitSeq(header, ",") {
			name, parameters, _ := strings.Cut(part, ";")
			if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
				continue
			}
			_, quality, given := strings.Cut(parameters, "q=")
			q, err := strconv.ParseFloat(strings.TrimSpace(quality), 64)
			return !given || err == nil && q > 0
		}
	}
	return false
}

// MarkCompressed sets the headers of an answer that is sent compressed.
func MarkCompressed(c *gin.Context) {
	h := c.Writer.Header()
	h.Set("Content-Encoding", "gzip")
	h.Del("Accept-Ranges")
	if tag := h.Get("ETag"); tag != "" {
		h.Set("ETag", strings.TrimSuffix(tag, `"`)+gzipMark+`"`)
	}
}
