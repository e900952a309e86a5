package client

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// maxEventBytes bounds one server-sent event.
const maxEventBytes = 32 << 20

var errEventTooLong = errors.New("an event is longer than 32 MiB")

// frame is a server-sent event.
type frame struct {
	id   string
	name string
	data []byte
}

// frames reads server-sent events.
type frames struct {
	r    *bufio.Reader
	last string // the last id seen
}

func newFrames(r io.Reader) *frames { return &frames{r: bufio.NewReaderSize(r, 64<<10)} }

// next returns the next event with data, or io.EOF. An incomplete event at the end is dropped, as the format requires.
func (f *frames) next() (frame, error) {
	var out frame
	has := false
	for {
		line, err := f.line(maxEventBytes - len(out.data))
		if err != nil {
			return frame{}, err
		}
		if len(line) == 0 {
			if has {
				out.id = f.last
				return out, nil
			}
			out = frame{}
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "id":
			if !bytes.ContainsRune(value, 0) {
				f.last = string(value)
			}
		case "event":
			out.name = string(value)
		case "data":
			if has {
				out.data = append(out.data, '\n')
			}
			out.data = append(out.data, value...)
			has = true
		}
	}
}

// line returns the next line without its line end.
func (f *frames) line(most int) ([]byte, error) {
	var whole []byte
	for {
		part, err := f.r.ReadSlice('\n')
		whole = append(whole, part...)
		if len(whole) > most {
			return nil, errEventTooLong
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return nil, err
		}
		return bytes.TrimRight(whole, "\r\n"), nil
	}
}
