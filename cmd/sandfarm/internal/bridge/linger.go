package bridge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"sync"
	"time"
)

// lingerTime is how long calls that are under way may take to end after the client closed our input. A client that is
// gone for good ends us by a signal well before.
const lingerTime = 10 * time.Second

// linger holds back the end of input until every request that came has its answer: what reads the input ends all calls
// when it ends, and a client that pipes requests in and closes the pipe would get no answers.
type linger struct {
	ctx context.Context //nolint:containedctx // of one run: an io.Reader takes none
	in  *bufio.Reader
	out io.Writer

	mu      sync.Mutex
	line    []byte         // of the input, as far as it has been read on
	waiting map[string]int // requests without an answer, by their ids
	none    chan struct{}  // closed when the last one is answered after the end
	ended   bool
}

func newLinger(ctx context.Context, in io.Reader, out io.Writer) *linger {
	return &linger{ctx: ctx, in: bufio.NewReader(in), out: out, waiting: map[string]int{}, none: make(chan struct{})}
}

// Read gives the input line by line, and its end when nothing is under way.
func (l *linger) Read(p []byte) (int, error) {
	if len(l.line) == 0 {
		line, err := l.in.ReadBytes('\n')
		if len(line) == 0 {
			l.settle()
			return 0, err
		}
		if line[len(line)-1] != '\n' { // the last line of a client that does not end it
			line = append(line, '\n')
		}
		l.count(line, true)
		l.line = line
	}
	n := copy(p, l.line)
	l.line = l.line[n:]
	return n, nil
}

// Write writes one message.
func (l *linger) Write(p []byte) (int, error) {
	n, err := l.out.Write(p)
	l.count(p, false)
	return n, err //nolint:wrapcheck // passed on as it is
}

// count notes requests and answers; notifications have no id, and only answers have no method.
func (l *linger) count(message []byte, asked bool) {
	var head struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	if json.Unmarshal(message, &head) != nil || len(head.ID) == 0 || bytes.Equal(head.ID, []byte("null")) || (head.Method != "") != asked {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	id := string(head.ID)
	switch {
	case asked && head.Method != "subscriptions/listen": // it has no end of its own
		l.waiting[id]++
	case !asked && l.waiting[id] > 1:
		l.waiting[id]--
	case !asked:
		delete(l.waiting, id)
	}
	l.look()
}

// look tells settle when nothing is waited for. The lock is held.
func (l *linger) look() {
	if !l.ended || len(l.waiting) > 0 {
		return
	}
	select {
	case <-l.none:
	default:
		close(l.none)
	}
}

// settle waits for the answers that are due.
func (l *linger) settle() {
	l.mu.Lock()
	l.ended = true
	l.look()
	l.mu.Unlock()
	timer := time.NewTimer(lingerTime)
	defer timer.Stop()
	select {
	case <-l.none:
	case <-timer.C:
	case <-l.ctx.Done():
	}
}
