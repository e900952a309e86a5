package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// discardBytes is how much of a refused body is read so that the caller, who is still sending, gets to see the answer.
const discardBytes = 256 << 20

// body is the request's body, with a deadline for each step of it.
func (s *Server) body(c *gin.Context) io.Reader {
	return &stalling{
		r: c.Request.Body, control: http.NewResponseController(c.Writer), patience: s.cfg.StallTimeout,
	}
}

// stalling ends a body that does not go on. The deadline is lifted at the body's end: from there the connection is
// watched for the caller's leaving, however long the answer takes. Short of the end it stays, since the server reads
// what is left of a body before it takes the next request.
type stalling struct {
	r        io.Reader
	control  *http.ResponseController
	patience time.Duration
}

// Read reads on, within the deadline.
func (s *stalling) Read(p []byte) (int, error) {
	_ = s.control.SetReadDeadline(time.Now().Add(s.patience)) // a recorder of a test has none
	n, err := s.r.Read(p)
	if errors.Is(err, io.EOF) {
		_ = s.control.SetReadDeadline(time.Time{})
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return n, refusef(http.StatusRequestTimeout, farm.CodeInvalid, "the body stopped arriving")
	}
	return n, err //nolint:wrapcheck // io.EOF must stay as it is
}

// read reads a JSON body as a whole, at most the farm's limit.
func (s *Server) read(c *gin.Context) ([]byte, error) {
	if err := wantJSON(c); err != nil {
		return nil, err
	}
	return s.whole(c, s.cfg.Limits.MaxBodyBytes)
}

// whole reads a body of any type as a whole, at most so many bytes.
func (s *Server) whole(c *gin.Context, most int64) ([]byte, error) {
	r := s.body(c)
	var text bytes.Buffer
	if c.Request.ContentLength <= most {
		_, err := text.ReadFrom(io.LimitReader(r, most+1))
		if err != nil {
			if _, ours := errors.AsType[*refusal](err); ours {
				return nil, err //nolint:wrapcheck // a sentence of our own
			}
			return nil, badf("the body ended before it was complete")
		}
	}
	if c.Request.ContentLength > most || int64(text.Len()) > most {
		discard(r)
		return nil, farm.Errorf(farm.CodeTooLarge, "the body has more than %d bytes, which is the limit: upload large data as a file", most)
	}
	return text.Bytes(), nil
}

// bind reads a JSON body into a struct and gives its bytes as well.
func (s *Server) bind(c *gin.Context, into any) ([]byte, error) {
	text, err := s.read(c)
	if err != nil {
		return nil, err
	}
	if err := strict.Decode(text, into); err != nil {
		return nil, fmt.Errorf("decode body: %w", err)
	}
	return text, nil
}

// bindOptional is bind for a body that may be left out.
func (s *Server) bindOptional(c *gin.Context, into any) ([]byte, error) {
	text, err := s.read(c)
	if err != nil || len(bytes.TrimSpace(text)) == 0 {
		return nil, err
	}
	if err := strict.Decode(text, into); err != nil {
		return nil, fmt.Errorf("decode body: %w", err)
	}
	return text, nil
}

// mediaType is the body's media type in lower case, "" when none is given.
func mediaType(c *gin.Context) (kind string, params map[string]string, err error) {
	header := c.GetHeader("Content-Type")
	if header == "" {
		return "", nil, nil
	}
	kind, params, err = mime.ParseMediaType(header)
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return "", nil, refusef(http.StatusUnsupportedMediaType, farm.CodeInvalid, "the Content-Type cannot be read")
	}
	return kind, params, nil
}

func wantJSON(c *gin.Context) error {
	kind, _, err := mediaType(c)
	if err != nil {
		return err
	}
	if kind == "" || kind == "application/json" || strings.HasSuffix(kind, "+json") {
		return nil
	}
	if c.Request.ContentLength == 0 {
		return nil // nothing that the type could be wrong for
	}
	return refusef(http.StatusUnsupportedMediaType, farm.CodeInvalid, "the Content-Type must be application/json, not %s", kind)
}
