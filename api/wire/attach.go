package wire

import "encoding/binary"

// MaxAttachBytes is how much input one message of a caller may carry.
const MaxAttachBytes = 64 << 10

// AttachKind is the first byte of each message of GET …/processes/{process}/attach. Numbers in messages are big-endian.
type AttachKind byte

// What callers send.
const (
	AttachStdin  AttachKind = 1 // bytes for the input
	AttachEnd    AttachKind = 2 // the end of the input
	AttachResize AttachKind = 3 // columns and rows of the terminal, 2 bytes each
)

// What the farm sends.
const (
	AttachStdout  AttachKind = 17 // number of the piece, 8 bytes, and its bytes
	AttachStderr  AttachKind = 18 // the same
	AttachDropped AttachKind = 19 // number of the last piece that was not kept, 8 bytes
	AttachExit    AttachKind = 20 // number, 8 bytes, and ExitData as JSON; nothing follows
	AttachTaken   AttachKind = 21 // how many bytes of input the process has, 8 bytes; an end counts as one
	AttachRefused AttachKind = 22 // AttachError as JSON: what was sent was not done, and the connection continues
)

// AttachHead is the length of what is before the bytes of a numbered message.
const AttachHead = 9

// AppendAttach appends the head of a numbered message.
func AppendAttach(to []byte, kind AttachKind, number uint64) []byte {
	return binary.BigEndian.AppendUint64(append(to, byte(kind)), number)
}

// AppendAttachSize appends an AttachResize message.
func AppendAttachSize(to []byte, size TerminalSize) []byte {
	to = binary.BigEndian.AppendUint16(append(to, byte(AttachResize)), uint16(size.Cols)) //nolint:gosec // both are up to 1000
	return binary.BigEndian.AppendUint16(to, uint16(size.Rows))                           //nolint:gosec // as above
}

// AttachError says why something that was sent was not done.
type AttachError struct {
	Code   string `json:"code" doc:"as in Problem"`
	Detail string `json:"detail" doc:"a sentence"`
}
