package rest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
)

// ReadAll reads a WholeBody of any type, up to limit bytes. A longer body is too_large.
func ReadAll(c *gin.Context, limit int64) ([]byte, error) {
	r := WholeBody(c)
	text, err := budget.ReadAll(c.Request.Context(), r, c.Request.ContentLength, limit)
	switch {
	case err == nil:
		return text, nil
	case errors.Is(err, budget.ErrTooLong):
		Discard(r)
		return nil, farm.Errorf(farm.CodeTooLarge, "the body has more than %d bytes, which is the limit: upload large data as a file", limit)
	case farm.CodeOf(err) != farm.CodeInternal:
		return nil, err
	default:
		return nil, BadRequestf("the body ended before it was complete")
	}
}

// DecodeJSON is DecodeAnyJSON for a body whose Content-Type must be JSON or absent.
func DecodeJSON(c *gin.Context, limit int64, decode func(text []byte) error) error {
	_, err := decodeJSON(c, limit, decode)
	return err
}

// decodeJSON is DecodeJSON. It returns the size of the body for budget.Core.
func decodeJSON(c *gin.Context, limit int64, decode func(text []byte) error) (int, error) {
	if err := wantJSON(c); err != nil {
		return 0, err
	}
	return decodeAnyJSON(c, limit, decode)
}

// DecodeAnyJSON reads a body as ReadAll does, whatever its Content-Type, and decodes it: a large one, or one of many values, on a core of its tenant's. decode must not wait.
// More than farm.MaxBodyValues values are too_large. The error may be decode's.
func DecodeAnyJSON(c *gin.Context, limit int64, decode func(text []byte) error) error {
	_, err := decodeAnyJSON(c, limit, decode)
	return err
}

func decodeAnyJSON(c *gin.Context, limit int64, decode func(text []byte) error) (int, error) {
	text, err := ReadAll(c, limit)
	if err != nil {
		return 0, err
	}
	ctx := c.Request.Context()
	size, err := budget.Decoding(ctx, len(text), func() int { return budget.Values(text) })
	if err != nil {
		return 0, err
	}
	defer budget.LeaveCore(ctx)
	return size, decode(text)
}

// Decoded is a JSON body that was decoded into a struct.
type Decoded struct {
	Text     []byte
	Size     int               // for budget.Core: work on a short text of many values takes long, too
	Problems []farm.FieldError // fields that could not be read; the struct lacks them
}

// Bind decodes a JSON body into a struct. Fields that cannot be read are not an error here: the caller of Bind reports
// them together with all other problems of the body.
func Bind(c *gin.Context, limit int64, into any) (Decoded, error) { return bind(c, limit, into, false) }

// BindOptional is Bind for a body that may be empty.
func BindOptional(c *gin.Context, limit int64, into any) (Decoded, error) {
	return bind(c, limit, into, true)
}

func bind(c *gin.Context, limit int64, into any, optional bool) (out Decoded, err error) {
	out.Size, err = decodeJSON(c, limit, func(text []byte) error {
		if optional && len(bytes.TrimSpace(text)) == 0 {
			return nil
		}
		problems, err := strict.Fields(strict.Decode(text, into))
		if err != nil {
			return fmt.Errorf("decode body: %w", err)
		}
		out.Text, out.Problems = text, problems
		return nil
	})
	return out, err
}

// MediaType is the media type of the body in lower case with its parameters; "" where the request names none.
func MediaType(c *gin.Context) (kind string, params map[string]string, err error) {
	header := c.GetHeader("Content-Type")
	if header == "" {
		return "", nil, nil
	}
	kind, params, err = mime.ParseMediaType(header)
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return "", nil, Refusef(http.StatusUnsupportedMediaType, farm.CodeInvalid, "the Content-Type cannot be read")
	}
	return kind, params, nil
}

func wantJSON(c *gin.Context) error {
	if coding := c.GetHeader("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return Refusef(http.StatusUnsupportedMediaType, farm.CodeInvalid, "a JSON body must not have the Content-Encoding %s: send it as it is", farm.Shorten(coding))
	}
	kind, _, err := MediaType(c)
	if err != nil {
		return err
	}
	if kind == "" || kind == "application/json" || strings.HasSuffix(kind, "+json") {
		return nil
	}
	if c.Request.ContentLength == 0 {
		return nil
	}
	return Refusef(http.StatusUnsupportedMediaType, farm.CodeInvalid, "the Content-Type must be application/json, not %s", kind)
}

// workBytes is what a piece of work counts for beside the bytes that it reads and makes.
const workBytes = 32

// work is work on a body while it arrives. Once much has been done, it has a core of the tenant's (budget.Core), but not while it waits for more.
type work struct {
	ctx   context.Context
	from  io.Reader
	size  int    // how much was made of the body since the last piece of work
	leave func() // nil: no work is being done
}

// do does some work, which reads the body by Read.
func (w *work) do(some func() error) (err error) {
	if w.leave, err = budget.Core(w.ctx, workBytes+w.size); err != nil {
		return err
	}
	w.size = 0
	defer func() {
		w.leave()
		w.leave = nil
	}()
	return some()
}

// Read reads more of the body.
func (w *work) Read(p []byte) (int, error) {
	working := w.leave != nil
	if working {
		w.leave()
	}
	n, err := w.from.Read(p)
	if !working {
		return n, err
	}
	leave, failed := budget.Core(w.ctx, n)
	if failed != nil {
		return 0, failed
	}
	w.leave = leave
	return n, err
}

const (
	// partHeaderBytes and partHeaderLines bound what is read for the header of a part: a name of a path's length, each byte escaped, and a few
	// fields. Package multipart allows 10 MiB in 10,000 lines.
	partHeaderBytes = 16 << 10
	partHeaderLines = 32
)

// Parts reads the parts of a multipart body.
type Parts struct {
	*multipart.Reader
	from *partSource
	last *multipart.Part
}

// NewParts reads the parts of a body. Headers of many parts are read on a core of the tenant of ctx.
func NewParts(ctx context.Context, body io.Reader, boundary string) *Parts {
	from := &partSource{work: work{ctx: ctx, from: body}}
	return &Parts{Reader: multipart.NewReader(from, boundary), from: from}
}

// NextRawPart is that of multipart.Reader. A header of more than 16 KiB, or of many lines, is an error for the caller.
func (p *Parts) NextRawPart() (part *multipart.Part, err error) {
	err = p.from.do(func() error {
		if p.last != nil {
			_ = p.last.Close() // reads the rest of its content, which has no limit; an error comes again
		}
		p.from.header, p.from.bytes = true, 0
		p.from.lines.Reset()
		part, err = p.Reader.NextRawPart()
		return err
	})
	p.from.header, p.last = false, part
	if p.from.refusal != nil { // multipart may complain of the line that it cuts
		return nil, p.from.refusal
	}
	return part, err
}

// partSource is a body whose parts' headers are bounded.
type partSource struct {
	work
	header  bool // what is read is a header, or the boundary before it
	bytes   int  // of it
	lines   httpserver.Lines
	refusal error
}

// Read reads from the body.
func (s *partSource) Read(b []byte) (int, error) {
	if !s.header {
		return s.work.Read(b)
	}
	if s.bytes >= partHeaderBytes || s.lines.Over(partHeaderLines) { // and the header is not complete
		s.refusal = BadRequestf("the header of a part of the multipart body is longer than %d bytes or %d lines", partHeaderBytes, partHeaderLines)
		return 0, s.refusal
	}
	n, err := s.lines.Read(b, s.work.Read, partHeaderLines)
	s.bytes += n
	return n, err
}
