package rest

import (
	"context"
	"io"
	"mime/multipart"

	"github.com/sandfarm/sandfarm/internal/httpserver"
)

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
