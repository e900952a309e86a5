package process

import (
	"strings"
	"sync"

	"github.com/sandfarm/sandfarm/internal/agent/execution"
)

// tailBytes is how much a Tail keeps.
const tailBytes = 64 << 10

// Tail keeps the end of a stream. The zero value is empty. It is safe for concurrent use.
type Tail struct {
	mu   sync.Mutex
	data []byte
}

// Add appends the next bytes of the stream.
func (t *Tail) Add(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, b...)
	if over := len(t.data) - tailBytes; over > 0 {
		t.data = append([]byte(nil), t.data[over:]...)
	}
}

// String returns the end of the stream as text, without colours.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return execution.StripANSI(strings.ToValidUTF8(string(t.data), "\uFFFD"))
}
