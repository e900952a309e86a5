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

// lingerTime is how long running calls may take after the client closed our input. A client that has quit ends us by a signal
// before that.
const lingerTime = 10 * time.Second

// linger delays the end of input until every request has its answer. The reader of the input stops all calls at its end, so a client
// that pipes in requests and closes the pipe would get no answers.
type linger struct {
	ctx context.Context // of one run: an io.Reader takes none
	in  *bufio.Reader
	out io.Writer

	mu      sync.Mutex
	line    []byte         // rest of the current input line
	waiting map[string]int // number of unanswered requests, by id
	none    chan struct{}  // closed when the last request is answered after the end of input
	ended   bool
}

func newLinger(ctx context.Context, in io.Reader, out io.Writer) *linger {
	return &linger{ctx: ctx, in: bufio.NewReader(in), out: out, waiting: map[string]int{}, none: make(chan struct{})}
}

// Read returns the input line by line, and its end once all requests are answered.
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
	return n, err
}

// count records requests and answers. Notifications have no id, and only answers have no method.
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

// look wakes settle if no answer is outstanding. The caller holds the lock.
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

// settle waits for outstanding answers.
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
