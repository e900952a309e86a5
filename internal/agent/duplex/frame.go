package duplex

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// Window is how many bytes may be on their way in one direction. It is the most that an end keeps of what it has not read.
	Window = 128 << 10
	// maxData is the most data of one frame.
	maxData = 32 << 10
	// headerBytes is the length of a frame's header.
	headerBytes = 4
	// creditAfter is how much is read before credit is returned to the sender.
	creditAfter = Window / 4
)

// The kinds of frames.
const (
	kindData   = 1 // with its length
	kindCredit = 2 // that many bytes were read
	kindEnd    = 3 // no data follow
	kindReset  = 4 // the data are not complete, and none follow
)

// ErrReset says that the other end broke the connection off.
var ErrReset = errors.New("the connection was reset by the other end")

// errProtocol is wrapped by what a correct end does not send.
var errProtocol = errors.New("the other end of the stream does not follow the protocol")

// putHeader writes the header of a frame. number is at most Window.
func putHeader(to []byte, kind byte, number int) {
	binary.BigEndian.PutUint32(to, uint32(kind)<<24|uint32(number)) //nolint:gosec // it fits in 24 bits
}

// readHeader reads the header of a frame. io.EOF: the stream has ended between two frames.
func readHeader(from io.Reader, into *[headerBytes]byte) (kind byte, number int, err error) {
	if _, err := io.ReadFull(from, into[:]); err != nil {
		return 0, 0, err
	}
	word := binary.BigEndian.Uint32(into[:])
	kind, number = byte(word>>24), int(word&0xffffff)
	switch {
	case kind == kindData && number > 0 && number <= maxData, kind == kindCredit && number > 0 && number <= Window,
		(kind == kindEnd || kind == kindReset) && number == 0:
		return kind, number, nil
	default:
		return 0, 0, fmt.Errorf("%w: a frame of kind %d with %d", errProtocol, kind, number)
	}
}
