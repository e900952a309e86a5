package agent

import "bytes"

// Values counts the values of a JSON text, keys left out and strings as one each, and no fewer than there are. Values of a
// byte become dozens in memory: whoever reads what hostile ground has sent counts first.
func Values(text []byte) int {
	n := 1
	for {
		at := bytes.IndexAny(text, `"[{,`)
		if at < 0 {
			return n
		}
		c := text[at]
		text = text[at+1:]
		if c != '"' {
			n++
			continue
		}
		text = text[stringEnd(text):]
	}
}

// stringEnd is where a string ends, behind its quotation mark.
func stringEnd(text []byte) int {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
	}
	return len(text)
}
