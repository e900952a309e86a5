package farm

import "strings"

// maxQuoted is how many bytes of a caller's text a message quotes.
const maxQuoted = 80

// Shorten cuts a caller's text to 80 bytes and marks the cut, so that it cannot fill a message.
func Shorten(s string) string {
	if len(s) <= maxQuoted {
		return s
	}
	return strings.ToValidUTF8(s[:maxQuoted], "") + "…"
}
