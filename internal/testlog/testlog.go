// Package testlog keeps what a program or a logger under test says, while it says it.
package testlog

import (
	"bytes"
	"sync"
)

// tailBytes is what Tail gives of a longer text: enough for the message of a failed test.
const tailBytes = 6000

// Log is a text that one side writes while another reads it. The zero value is empty and ready.
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

// String gives all that was written until now.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Tail gives the end of what was written until now, for the message of a failed test.
func (l *Log) Tail() string {
	text := l.String()
	return text[max(0, len(text)-tailBytes):]
}
