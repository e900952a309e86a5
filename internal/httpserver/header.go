package httpserver

import (
	"bytes"
	"errors"
	"net/http"
	"sync/atomic"
)

const (
	// headerBytes is how long a header is where the server does not say it.
	headerBytes = 32 << 10
	// headerLines is how many lines a request has before its body. Each takes some 100 bytes in memory, however short it is. Browsers and
	// proxies send fewer than 60, and an upload of E2B's SDKs has 64 more with its metadata.
	headerLines = 128
	// fill is the buffer that http.Server reads a header into. A read with a larger one is of a body.
	fill = 4 << 10
	// ahead bounds a read into that buffer: what it has beyond the header is not counted if it is the next one.
	ahead = 512
)

var errHeaderLines = errors.New("the header of the request has too many lines")

// Header bounds the lines of the headers that an http.Server reads from one connection; the server itself bounds their bytes only. The
// connection must pass on its reads and its states. The zero value bounds nothing until it is told the first state.
type Header struct {
	reading atomic.Bool // a header
	serving atomic.Bool // HTTP
	lines   atomic.Int64
}

// Note is told each state of the connection, by the server's ConnState: between requests, and until the first one, the server reads a header.
func (h *Header) Note(state http.ConnState) {
	h.lines.Store(0)
	h.reading.Store(state == http.StateNew || state == http.StateIdle)
	h.serving.Store(state != http.StateHijacked)
}

// Read reads with from. It fails if the header is not complete after 128 lines, and as many as one more read brings.
func (h *Header) Read(b []byte, from func([]byte) (int, error)) (int, error) {
	if !h.serving.Load() {
		return from(b)
	}
	if h.lines.Load() > headerLines {
		return 0, errHeaderLines
	}
	if len(b) <= fill {
		b = b[:min(len(b), ahead)]
	}
	n, err := from(b)
	if h.reading.Load() { // lines of a body that come with the end of its header go uncounted when the next state is noted
		h.lines.Add(int64(bytes.Count(b[:n], []byte{'\n'})))
	}
	return n, err
}
