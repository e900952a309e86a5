package redistest

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
)

// readCommand reads one command of a client, an array of bulk strings, and returns its bytes and its words.
func readCommand(r *bufio.Reader) (raw []byte, words []string, err error) {
	kind, n, raw, err := readHeader(r, nil)
	if err != nil {
		return nil, nil, err
	}
	if kind != '*' {
		return nil, nil, fmt.Errorf("a command begins with %q, not with *", kind)
	}
	for range n {
		kind, size, next, err := readHeader(r, raw)
		if err != nil {
			return nil, nil, err
		}
		if kind != '$' || size < 0 {
			return nil, nil, fmt.Errorf("a word of a command begins with %q, not with $", kind)
		}
		if raw, err = readBody(r, next, size); err != nil {
			return nil, nil, err
		}
		words = append(words, string(raw[len(raw)-size-2:len(raw)-2]))
	}
	return raw, words, nil
}

// readReply reads one reply of a server, of version 2 or 3 of the protocol, and returns its bytes. pushed says that no command asked for it.
func readReply(r *bufio.Reader, raw []byte) (all []byte, pushed bool, err error) {
	kind, n, raw, err := readHeader(r, raw)
	if err != nil {
		return nil, false, err
	}
	switch kind {
	case '$', '=', '!':
		if n >= 0 {
			raw, err = readBody(r, raw, n)
		}
		return raw, false, err
	case '%', '|':
		n *= 2
	case '*', '~', '>':
	default:
		return raw, false, nil
	}
	for range n {
		if raw, _, err = readReply(r, raw); err != nil {
			return nil, false, err
		}
	}
	if kind == '|' { // an attribute comes before the reply that it describes
		return readReply(r, raw)
	}
	return raw, kind == '>', nil
}

// readHeader reads a line such as "*3\r\n" and appends it to raw. n is 0 where the line has no number.
func readHeader(r *bufio.Reader, raw []byte) (kind byte, n int, all []byte, err error) {
	line, err := r.ReadSlice('\n')
	for err == bufio.ErrBufferFull { //nolint:errorlint // the very value
		raw = append(raw, line...)
		line, err = r.ReadSlice('\n')
	}
	if err != nil {
		return 0, 0, nil, err
	}
	if len(line) < 3 {
		return 0, 0, nil, fmt.Errorf("the line %q is too short", line)
	}
	kind = line[0]
	n, _ = strconv.Atoi(string(line[1 : len(line)-2])) // a text, where it is no number
	return kind, n, append(raw, line...), nil
}

// readBody reads size bytes and the end of the line, and appends them to raw.
func readBody(r *bufio.Reader, raw []byte, size int) ([]byte, error) {
	at := len(raw)
	raw = append(raw, make([]byte, size+2)...)
	_, err := io.ReadFull(r, raw[at:])
	return raw, err
}
