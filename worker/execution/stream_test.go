package execution

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestStreamKeepsHeadAndTail(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 99, 100, 101, 149, 150, 151, 1000, 12345} {
		for _, step := range []int{1, 7, 50, 100, 300, 20000} {
			whole := make([]byte, size)
			for i := range whole {
				whole[i] = 'a' + byte(rand.IntN(26))
			}
			s := newStream(100)
			var spilled bytes.Buffer
			spilling := false
			for rest := whole; len(rest) > 0; {
				n := min(step, len(rest))
				before, outgrew := s.write(rest[:n])
				if outgrew {
					spilling = true
					spilled.Write(before)
				}
				if spilling {
					spilled.Write(rest[:n])
				}
				rest = rest[n:]
			}
			text := s.text("whole.txt")
			if size <= 100 {
				if text != string(whole) || s.truncated() || spilling {
					t.Fatalf("size %d step %d: a short stream is kept whole", size, step)
				}
				continue
			}
			if !s.truncated() || !bytes.Equal(spilled.Bytes(), whole) {
				t.Fatalf("size %d step %d: %d bytes spilled", size, step, spilled.Len())
			}
			if !strings.HasPrefix(text, string(whole[:50])+"\n…") || !strings.HasSuffix(text, "…\n"+string(whole[size-50:])) {
				t.Fatalf("size %d step %d: head or tail is wrong: %q", size, step, text)
			}
		}
	}
}

func TestStreamNeverCutsARuneInTwo(t *testing.T) {
	t.Parallel()
	s := newStream(1 << 20)
	var live strings.Builder
	const text = "a世🎈é\n"
	for _, b := range []byte(text) {
		live.WriteString(s.live([]byte{b}))
	}
	if live.String() != text || s.rest() != "" {
		t.Fatalf("live text is %q", live.String())
	}
	if got := s.live([]byte("ok\xe4")); got != "ok" {
		t.Fatalf("a broken rune came out: %q", got)
	}
	if got := s.rest(); got != "\uFFFD" {
		t.Fatalf("the rest is %q", got)
	}
}
