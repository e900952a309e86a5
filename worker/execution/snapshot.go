package execution

import (
	"bytes"
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// snapshot is the state of a collector between two frames. Its encoding is the length of the JSON text (4 bytes, big endian), the
// JSON text, and then the bytes of the streams, whose lengths are in the text.
type snapshot struct {
	Seq      uint64              `json:"seq"`
	Outputs  [][2]sinkState      `json:"outputs"`
	Rich     []farm.RichResult   `json:"rich,omitempty"`
	Shown    int                 `json:"shown,omitempty"`
	Large    int                 `json:"large,omitempty"`
	Stored   int64               `json:"stored,omitempty"`
	Inline   int                 `json:"inline,omitempty"`
	RichSent int                 `json:"rich_sent,omitempty"`
	Sent     [2]int              `json:"sent"`
	RichFull bool                `json:"rich_full,omitempty"`
	Marks    []agent.CommandMark `json:"marks,omitempty"`
	Notes    []string            `json:"notes,omitempty"`
	Missing  bool                `json:"missing,omitempty"`
	Unstored *farm.JobError      `json:"unstored,omitempty"`
}

// sinkState is the state of a sink. Head, Tail and Rest are numbers of bytes.
type sinkState struct {
	Limit    int            `json:"limit"`
	Total    int64          `json:"total"`
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
}

// snapshot encodes the collector's state. Queued events and displays must have been taken before.
func (c *collector) snapshot() ([]byte, error) {
	state := snapshot{
		Seq: c.seq, Rich: c.rich, Shown: c.shown, Large: c.large, Stored: c.stored, Inline: c.inline, RichSent: c.richSent, Sent: c.sent,
		RichFull: c.richFull, Marks: c.marks, Notes: c.notes, Missing: c.missing,
	}
	if c.unstored != nil {
		state.Unstored = &farm.JobError{Code: farm.CodeOf(c.unstored), Message: c.unstored.Error()}
	}
	var streams [][]byte
	size := 0
	for _, o := range c.outputs {
		var pair [2]sinkState
		for i, s := range o.both() {
			var err error
			if pair[i], err = s.state(); err != nil {
				return nil, err
			}
			for _, part := range [][]byte{s.head.Bytes(), s.tail, s.unsent} {
				streams = append(streams, part)
				size += len(part)
			}
		}
		state.Outputs = append(state.Outputs, pair)
	}
	text, err := json.Marshal(state)
	if err != nil {
		return nil, fmt.Errorf("encode snapshot: %w", err)
	}
	data := make([]byte, 0, 4+len(text)+size)
	data = binary.BigEndian.AppendUint32(data, uint32(len(text))) //nolint:gosec // the record's bounds are far lower
	data = append(data, text...)
	for _, part := range streams {
		data = append(data, part...)
	}
	return data, nil
}

func (s *sink) state() (sinkState, error) {
	state := sinkState{
		Limit: s.limit, Total: s.total, Head: s.head.Len(), Tail: len(s.tail), At: s.at, Full: s.stream.full, Carry: s.carry,
		Dropped: s.dropped, Upload: s.upload, Parts: s.parts, Rest: len(s.unsent), Artifact: s.artifact, Lost: s.lost,
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

// restore puts a new collector into the state of a snapshot.
func (c *collector) restore(data []byte) error {
	if len(data) < 4 {
		return errSnapshot
	}
	n := binary.BigEndian.Uint32(data)
	if data = data[4:]; uint64(n) > uint64(len(data)) {
		return errSnapshot
	}
	var state snapshot
	if err := json.Unmarshal(data[:n], &state); err != nil {
		return fmt.Errorf("%w: %w", errSnapshot, err)
	}
	data = data[n:]
	c.seq, c.rich, c.shown, c.large, c.stored = state.Seq, state.Rich, state.Shown, state.Large, state.Stored
	c.sent, c.missing = state.Sent, state.Missing
	c.inline, c.richSent, c.richFull, c.marks, c.notes = state.Inline, state.RichSent, state.RichFull, state.Marks, state.Notes
	if e := state.Unstored; e != nil {
		c.unstored = farm.Errorf(e.Code, "%s", e.Message)
	}
	prefixes := c.outputs // those of an execute are there from the start
	c.outputs = nil
	for i, pair := range state.Outputs {
		var o *output
		if i < len(prefixes) {
			o = prefixes[i]
		} else {
			o = c.newOutput(commandPrefix(i))
		}
		for k, s := range o.both() {
			var err error
			if data, err = s.restore(pair[k], data); err != nil {
				return err
			}
		}
		c.outputs = append(c.outputs, o)
	}
	if len(data) > 0 {
		return errSnapshot
	}
	return nil
}

// restore puts a sink into a state, with the first bytes of data, and returns the other bytes.
func (s *sink) restore(state sinkState, data []byte) ([]byte, error) {
	take := func(n int) []byte {
		if n < 0 || n > len(data) {
			return nil
		}
		part := bytes.Clone(data[:n])
		data = data[n:]
		return part
	}
	s.stream = newStream(state.Limit)
	s.total, s.at, s.stream.full, s.carry = state.Total, state.At, state.Full, state.Carry
	s.head.Write(take(state.Head))
	s.tail = take(state.Tail)
	s.unsent = take(state.Rest)
	if s.head.Len() != state.Head || len(s.tail) != state.Tail || len(s.unsent) != state.Rest {
		return nil, errSnapshot
	}
	s.dropped = state.Dropped
	s.upload, s.parts, s.artifact, s.lost = state.Upload, state.Parts, state.Artifact, state.Lost
	if len(state.Sum) > 0 {
		s.sum = sha256.New()
		if err := s.sum.(encoding.BinaryUnmarshaler).UnmarshalBinary(state.Sum); err != nil { //nolint:forcetypeassert // its documentation says so
			return nil, fmt.Errorf("%w: %w", errSnapshot, err)
		}
	}
	return data, nil
}
