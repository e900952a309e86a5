package server

import (
	"strings"
	"testing"
)

// Whoever gets the sentence asks for more by that argument, over REST and MCP alike, and learns which files take a good part of the memory.
func TestMemorySentence(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, test := range []struct {
		limit, files int64
		want         string
	}{
		{0, 100 * mib, "limit was reached. Use less memory at once, or create a sandbox with more memory_mb."},
		{64 * mib, 16*mib - 1, "limit of 64 MiB. Use less memory at once, or create a sandbox with more memory_mb."},
		{64 * mib, 16 * mib, "limit of 64 MiB. Files take 16 MiB of it (/workspace 16 MiB). Delete some of them, use less memory at once, or create a sandbox with more memory_mb."},
	} {
		if got := memorySentence(test.limit, test.files, "/workspace 16 MiB"); !strings.HasSuffix(got, test.want) {
			t.Errorf("%+v: %s", test, got)
		}
	}
}
