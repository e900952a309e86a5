package server

import (
	"strings"
	"testing"
)

// Whoever gets the sentence asks for more by that argument, over REST and MCP alike.
func TestMemorySentenceNamesTheArgument(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int64]string{0: "with more memory_mb.", 64 << 20: "limit of 64 MiB. Use less memory at once, or create a sandbox with more memory_mb."} {
		if got := memorySentence(limit); !strings.Contains(got, want) {
			t.Errorf("%d: %s", limit, got)
		}
	}
}
