package execution

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// snapshot is the state of a collector between two frames. Its encoding is the length of the JSON text (4 bytes, big endian), the
// JSON text, and then the bytes of the streams and of the displayed values, whose lengths are in the text: in JSON a byte can take six.
type snapshot struct {
	Seq      uint64              `json:"seq"`
	Outputs  [][2]sinkState      `json:"outputs"`
	Rich     []farm.RichResult   `json:"rich,omitempty"`   // without their data
	Values   []int               `json:"values,omitempty"` // bytes of the data of each of Rich; nil: an older worker left them there
	Redacted int                 `json:"shown,omitempty"`
	Large    int                 `json:"large,omitempty"`
	Stored   int64               `json:"stored,omitempty"`
	RichSent int                 `json:"rich_sent,omitempty"`
	Sent     [2]int              `json:"sent"`
	Texts    [2]int              `json:"texts,omitzero"`
	RichFull bool                `json:"rich_full,omitempty"`
	Clearing bool                `json:"clearing,omitempty"`
	Cleared  int                 `json:"cleared,omitempty"`
	Marks    []agent.CommandMark `json:"marks,omitempty"`
	Notes    []string            `json:"notes,omitempty"`
	Missing  bool                `json:"missing,omitempty"`
	Unstored *farm.JobError      `json:"unstored,omitempty"`
}

// sinkState is the state of a sink. Head, Tail and Rest are numbers of bytes.
type sinkState struct {
	Limit    int            `json:"limit"`
	Total    int64          `json:"total"`
	Cost     int64          `json:"cost,omitempty"` // 0: an older worker counted bytes
	Head     int            `json:"head"`
	Tail     int            `json:"tail"`
	At       int            `json:"at"`
	Full     bool           `json:"full"`
	Carry    []byte         `json:"carry,omitempty"`
	Dropped  int64          `json:"dropped,omitempty"`
	Upload   string         `json:"upload,omitempty"`
	Parts    int            `json:"parts,omitempty"`
	Sum      []byte         `json:"sum,omitempty"`
	Rest     int            `json:"rest,omitempty"`
	Artifact *farm.Artifact `json:"artifact,omitempty"`
	Lost     bool           `json:"lost,omitempty"`
	NoRoom   bool           `json:"no_room,omitempty"`
}

// snapshot encodes the collector's state. Queued events and displays must have been taken before. It returns a function that makes a reader of
// the encoding, valid until the collector changes, and its length: spools and displayed values are not copied.
func (c *collector) snapshot() (open func() io.Reader, size int64, err error) {
	state := snapshot{
		Seq: c.seq, Rich: slices.Clone(c.rich), Redacted: c.shown, Large: c.large, Stored: c.stored, RichSent: c.richSent, Sent: c.sent, Texts: c.texts,
		RichFull: c.richFull, Clearing: c.clearing, Cleared: c.cleared, Marks: c.marks, Notes: c.notes, Missing: c.missing,
	}
	if c.unstored != nil {
		state.Unstored = &farm.JobError{Code: farm.CodeOf(c.unstored), Message: c.unstored.Error()}
	}
	var streams []func() io.Reader
	add := func(n int64, read func() io.Reader) {
		if n > 0 {
			streams = append(streams, read)
			size += n
		}
	}
	for _, o := range c.outputs {
		var pair [2]sinkState
		for i, s := range o.both() {
			var err error
			if pair[i], err = s.state(); err != nil {
				return nil, 0, err
			}
			for _, part := range [][]byte{s.head, s.tail} {
				add(int64(len(part)), func() io.Reader { return bytes.NewReader(part) })
			}
			add(s.unsent.len(), func() io.Reader { return s.unsent.first(s.unsent.len()) })
		}
		state.Outputs = append(state.Outputs, pair)
	}
	for i, r := range c.rich {
		state.Rich[i].Data = ""
		state.Values = append(state.Values, len(r.Data))
		add(int64(len(r.Data)), func() io.Reader { return strings.NewReader(r.Data) })
	}
	text, err := farm.Encode(state)
	if err != nil {
		return nil, 0, fmt.Errorf("encode snapshot: %w", err)
	}
	length := binary.BigEndian.AppendUint32(nil, uint32(len(text))) //nolint:gosec // the record's bounds are far lower
	return func() io.Reader {
		readers := []io.Reader{bytes.NewReader(length), bytes.NewReader(text)}
		for _, read := range streams {
			readers = append(readers, read())
		}
		return io.MultiReader(readers...)
	}, int64(len(length)+len(text)) + size, nil
}

func (s *sink) state() (sinkState, error) {
	state := sinkState{
		Limit: s.limit, Total: s.total, Cost: s.cost, Head: len(s.head), Tail: len(s.tail), At: s.at, Full: s.stream.full, Carry: s.carry,
		Dropped: s.dropped, Upload: s.upload, Parts: s.parts, Rest: int(s.unsent.len()), Artifact: s.artifact, Lost: s.lost, NoRoom: s.noRoom,
	}
	if sum, ok := s.sum.(encoding.BinaryMarshaler); ok {
		var err error
		if state.Sum, err = sum.MarshalBinary(); err != nil {
			return state, fmt.Errorf("encode hash: %w", err)
		}
	}
	return state, nil
}

var errSnapshot = errors.New("the snapshot is damaged")

// restore puts a new collector into the state of a snapshot, and charges what it brings: streams without room are cut. After an error it can be
// called again.
func (c *collector) restore(r io.Reader) (err error) {
	length, err := take(r, 4)
	if err != nil {
		return err
	}
	text, err := take(r, int64(binary.BigEndian.Uint32(length)))
	if err != nil {
		return err
	}
	var state snapshot
	if err := json.Unmarshal(text, &state); err != nil {
		return fmt.Errorf("%w: %w", errSnapshot, err)
	}
	c.seq, c.shown, c.large, c.stored = state.Seq, state.Redacted, state.Large, state.Stored
	c.sent, c.texts, c.missing = state.Sent, state.Texts, state.Missing
	c.richSent, c.richFull, c.marks, c.notes = state.RichSent, state.RichFull, state.Marks, state.Notes
	c.clearing, c.cleared = state.Clearing, state.Cleared
	if e := state.Unstored; e != nil {
		c.unstored = farm.Errorf(e.Code, "%s", e.Message)
	}
	prefixes := c.outputs // those of an execute are there from the start
	c.outputs = nil
	defer func() {
		if err != nil {
			c.close()
			c.outputs = prefixes
		}
	}()
	for i, pair := range state.Outputs {
		var o *output
		if i < len(prefixes) {
			o = prefixes[i]
		} else {
			o = c.newOutput(commandPrefix(i))
		}
		c.outputs = append(c.outputs, o) // first, so that it is closed with the others
		for k, s := range o.both() {
			if err := s.restore(pair[k], r); err != nil {
				return err
			}
			c.inMemory.bytes += int64(s.inlined())
			c.makeRoom(s, nil)
		}
	}
	if err := c.restoreRich(state, r); err != nil {
		return err
	}
	if n, err := io.ReadFull(r, make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		return cmp.Or(ignoreEnd(err), errSnapshot)
	}
	return nil
}

// restoreRich takes the displayed values of a snapshot, with the next bytes of it. Those without room are left out.
func (c *collector) restoreRich(state snapshot, r io.Reader) error {
	if len(state.Values) > 0 && len(state.Values) != len(state.Rich) {
		return errSnapshot
	}
	c.rich, c.inline = nil, 0
	for i, entry := range state.Rich {
		if len(state.Values) > 0 {
			data, err := take(r, int64(state.Values[i]))
			if err != nil {
				return err
			}
			entry.Data = string(data)
		}
		switch {
		case c.charge(weight(entry)):
		case entry.Artifact == nil:
			c.note(noRoomForValues)
			continue
		default: // it is in the object store
			c.inMemory.bytes += weight(entry)
		}
		c.rich = append(c.rich, entry)
		c.inline += inlineSize(entry)
	}
	return nil
}

// take reads n bytes of a snapshot.
func take(r io.Reader, n int64) ([]byte, error) {
	if n < 0 || n > maxSnapshot {
		return nil, errSnapshot
	}
	data := bytes.NewBuffer(make([]byte, 0, min(n, takeAhead)+bytes.MinRead)) // it grows only where more is read
	if _, err := io.CopyN(data, r, n); err != nil {
		return nil, cmp.Or(ignoreEnd(err), errSnapshot)
	}
	return data.Bytes(), nil
}

// ignoreEnd is nil for the end of a snapshot, which then is too short.
func ignoreEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// restore puts a sink into a state, with the next bytes of a snapshot.
func (s *sink) restore(state sinkState, r io.Reader) error {
	s.stream = newStream(state.Limit)
	s.total, s.cost, s.at, s.stream.full, s.carry = state.Total, cmp.Or(state.Cost, state.Total), state.At, state.Full, state.Carry
	var err error
	if s.head, err = take(r, int64(state.Head)); err != nil {
		return err
	}
	if s.tail, err = take(r, int64(state.Tail)); err != nil {
		return err
	}
	if err := s.restoreUnsent(r, state); err != nil {
		return err
	}
	s.dropped = state.Dropped
	s.upload, s.parts, s.artifact, s.lost = state.Upload, state.Parts, state.Artifact, state.Lost
	s.noRoom = s.noRoom || state.NoRoom
	if len(state.Sum) > 0 {
		s.sum = sha256.New()
		if err := s.sum.(encoding.BinaryUnmarshaler).UnmarshalBinary(state.Sum); err != nil {
			return fmt.Errorf("%w: %w", errSnapshot, err)
		}
	}
	return nil
}

// restoreUnsent reads the spool of a sink. Without room for it the stream is cut as if it had come now.
func (s *sink) restoreUnsent(r io.Reader, state sinkState) error {
	s.unsent.close()
	for left := int64(state.Rest); left > 0; {
		piece, err := take(r, min(left, takeAhead))
		if err != nil {
			return err
		}
		left -= int64(len(piece))
		if s.noRoom {
			continue
		}
		if s.noRoom = s.unsent.add(piece) != nil; s.noRoom {
			s.unsent.close()
		}
	}
	return nil
}
