package httpserver

import (
	"bytes"
	"errors"
	"sync/atomic"
)

// ahead bounds each read of a header, which may bring bytes of what follows it.
const ahead = 512

// ErrHeaderLines says that a header has too many lines.
var ErrHeaderLines = errors.New("the header has too many lines")

// Lines counts the lines of a header while it is read. Each takes some 100 bytes in memory, however short it is. The zero value has counted none.
type Lines struct{ n atomic.Int64 }

// Reset begins with the next header.
func (l *Lines) Reset() { l.n.Store(0) }

// Over reports whether there were more lines than a number of them.
func (l *Lines) Over(limit int) bool { return l.n.Load() > int64(limit) }

// Read reads with from, a little at a time. It fails if the header is not complete after so many lines, and as many as one more read brings.
func (l *Lines) Read(b []byte, from func([]byte) (int, error), limit int) (int, error) {
	if l.Over(limit) {
		return 0, ErrHeaderLines
	}
	n, err := from(b[:min(len(b), ahead)])
	l.n.Add(int64(bytes.Count(b[:n], []byte{'\n'})))
	return n, err
}
