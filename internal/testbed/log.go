package testbed

import (
	"bytes"
	"sync"
)

// tailBytes is the length of Tail: enough for the message of a failed test.
const tailBytes = 6000

// Log is a text that can be read while it is written. The zero value is empty and ready.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends; it never fails.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns what was written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Tail returns the end of what was written so far, for the message of a failed test.
func (l *Log) Tail() string {
	text := l.String()
	return text[max(0, len(text)-tailBytes):]
}
