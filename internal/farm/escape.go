package farm

import (
	"bytes"
	"slices"
	"unicode/utf8"
)

// EscapeBytes is how long an escape of JSON is, the longest that is no escape of another one.
const EscapeBytes = len(`\u002f`)

// Unescaped replaces the escapes of JSON and of URLs in a text, also those of one another, so that what encoders make of a text without % and
// backslashes is the same for all of them: `\/`, `\\/`, `\u002f`, `\x2F`, %2f and %252F are all a slash. A plus is a space, as in forms, and no
// backslash is left. It may return the text itself.
func Unescaped(text []byte) []byte {
	if !escaped(text) {
		return text
	}
	read := readEscapes(nil, text)
	out := make([]byte, 0, len(text))
	for i := 0; i < len(read); i = int(read[i].next) {
		out = read[i].append(out)
	}
	return out
}

func escaped(text []byte) bool { return bytes.ContainsAny(text, `%\+`) }

// character is what is read at a place of a text: its byte, or what the escape is that begins there.
type character struct {
	value rune  // a byte, or wide and a character
	next  int32 // the place after it
}

// wide marks what an escape of a character is, which is no byte.
const wide = 1 << 16

// append appends what is left of a character.
func (c character) append(to []byte) []byte {
	switch {
	case c.value == '+':
		return append(to, ' ')
	case c.value == '\\': // of no escape
		return to
	case c.value < wide:
		return append(to, byte(c.value)) //nolint:gosec // it is one
	}
	return utf8.AppendRune(to, c.value-wide)
}

// readEscapes reads the character at each place of a text, from the last one on: an escape consists of characters, which may be escapes. It uses the
// memory of read.
func readEscapes(read []character, text []byte) []character {
	if cap(read) < len(text) {
		read = make([]character, len(text))
	}
	read = read[:len(text)]
	for i := len(text) - 1; i >= 0; i-- {
		c, more := character{rune(text[i]), int32(i) + 1}, true //nolint:gosec // texts are short
		for more && (c.value == '%' || c.value == '\\') {
			c, more = readEscape(read, c)
		}
		read[i] = c
	}
	return read
}

// readEscape is the escape that a % or a backslash begins, and whether it does.
func readEscape(read []character, c character) (character, bool) {
	value, next, digits := rune(0), int(c.next), 2
	if c.value == '\\' {
		if next == len(read) || read[next].value != 'x' && read[next].value != 'u' {
			return c, false
		}
		if read[next].value == 'u' {
			digits = 4
		}
		next = int(read[next].next)
	}
	for range digits {
		if next >= len(read) {
			return c, false
		}
		digit := hexDigit(read[next].value)
		if digit < 0 {
			return c, false
		}
		value, next = value<<4|digit, int(read[next].next)
	}
	if c.value == '\\' && value >= utf8.RuneSelf {
		value += wide
	}
	return character{value, int32(next)}, true //nolint:gosec // as above
}

// hexDigit is -1 if a character is none.
func hexDigit(c rune) rune {
	switch low := c | 0x20; {
	case c >= '0' && c <= '9':
		return c - '0'
	case c < wide && low >= 'a' && low <= 'f':
		return low - 'a' + 10
	}
	return -1
}

// Sought is a text that EscapeSearch seeks.
type Sought struct {
	text []byte  // unescaped
	back []byte  // from its end to its beginning
	fall []int32 // after a mismatch with the byte at a place: where to go on; -1: with the next byte
	fold bool
}

// NewSought makes a Sought of a text, which is not empty. With fold, the case of its letters does not matter.
func NewSought(text []byte, fold bool) Sought {
	s := Sought{text: Unescaped(text), fold: fold}
	// What follows the text may complete an escape that its end begins.
	whole := 0
	for longer := Unescaped(append(bytes.Clone(text), "1111"...)); whole < min(len(s.text), len(longer)) && s.text[whole] == longer[whole]; {
		whole++
	}
	if whole >= minSecretBytes {
		s.text = s.text[:whole]
	}
	if fold {
		s.text = lower(s.text)
	}
	s.back = bytes.Clone(s.text)
	slices.Reverse(s.back)
	s.fall = make([]int32, len(s.back))
	for i, border := 0, int32(-1); i < len(s.back); i, border = i+1, border+1 {
		if s.fall[i] = border; border >= 0 && s.back[i] == s.back[border] {
			s.fall[i] = s.fall[border]
		}
		for border >= 0 && s.back[i] != s.back[border] {
			border = s.fall[border]
		}
	}
	return s
}

func lowerByte(b byte) byte {
	if b >= 'A' && b <= 'Z' {
		b |= 0x20
	}
	return b
}

func lower(text []byte) []byte {
	out := bytes.Clone(text)
	for i, b := range out {
		out[i] = lowerByte(b)
	}
	return out
}

// step goes on with the byte before: matched is how many bytes at the end of the text have been found.
func (s Sought) step(matched int32, b byte) int32 {
	if s.fold {
		b = lowerByte(b)
	}
	for matched >= 0 && s.back[matched] != b {
		matched = s.fall[matched]
	}
	return matched + 1
}

// EscapeSearch finds texts behind the escapes that Unescaped replaces, wherever they begin: what stands before a text may look like the beginning of an
// escape that the text continues, and does not hide it. The time is proportional to the length of what is searched. The zero value is usable, by one
// goroutine at a time; it keeps its memory.
type EscapeSearch struct {
	read    []character
	matched []int32 // of each place: how much of the end of what is sought begins there
}

// Finds reports whether a text has one of those that are sought.
func (e *EscapeSearch) Finds(text []byte, sought []Sought) bool {
	if !escaped(text) {
		return slices.ContainsFunc(sought, func(s Sought) bool {
			return bytes.Contains(text, s.text) || s.fold && bytes.Contains(lower(text), s.text)
		})
	}
	e.read = readEscapes(e.read, text)
	if cap(e.matched) <= len(text) {
		e.matched = make([]int32, len(text)+1)
	}
	e.matched = e.matched[:len(text)+1]
	return slices.ContainsFunc(sought, e.finds)
}

// finds searches backwards, so that each place goes on where the next character's has got to.
func (e *EscapeSearch) finds(s Sought) bool {
	e.matched[len(e.read)] = 0
	var buf [utf8.UTFMax]byte
	for i := len(e.read) - 1; i >= 0; i-- {
		c := e.read[i]
		matched := e.matched[c.next]
		left := c.append(buf[:0])
		for k := len(left) - 1; k >= 0; k-- {
			if matched = s.step(matched, left[k]); int(matched) == len(s.back) {
				return true
			}
		}
		e.matched[i] = matched
	}
	return false
}
