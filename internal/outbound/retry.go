package outbound

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
)

const (
	recordHeader    = 5
	recordFirst     = 20 // the types of records: change of ciphers, alert, handshake, data, heartbeat
	recordLast      = 24
	maxRecordBytes  = 16<<10 + 2048 // of what follows the header
	messageServer   = 2             // the type of a ServerHello
	serverRandomAt  = recordHeader + 4 + 2
	serverRandomEnd = serverRandomAt + 32
)

// retryRandom marks a ServerHello as a HelloRetryRequest (RFC 8446, 4.1.3).
var retryRandom = []byte{
	0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
	0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
}

// errRefused means that the tunnel was ended for what the client sent.
var errRefused = errors.New("the tunnel was refused")

// decision is what the first record of the host asks the client for. It is made once.
type decision struct {
	made  chan struct{}
	retry bool // a second ClientHello
}

// decide reads the first record of the host for the decision, and returns all that it read.
func (d *decision) decide(host io.Reader) (read []byte, err error) {
	defer close(d.made)
	read = make([]byte, recordHeader, serverRandomEnd)
	n, err := io.ReadFull(host, read)
	if err != nil {
		return read[:n], err
	}
	if read[0] != recordHandshake || binary.BigEndian.Uint16(read[3:]) < serverRandomEnd-recordHeader {
		return read, nil
	}
	n, err = io.ReadFull(host, read[recordHeader:serverRandomEnd])
	read = read[:recordHeader+n]
	d.retry = err == nil && read[recordHeader] == messageServer && bytes.Equal(read[serverRandomAt:], retryRandom)
	return read, err
}

// untilDecided sends on what the client sends before the host has decided: early data. If the host asks for a second ClientHello, that is
// checked like the first: some servers take its name, and no other message may come before. The error is io.EOF if the client has ended
// its direction.
func (l *link) untilDecided(ctx context.Context, from io.Reader, host *hostConn, d *decision) error {
	for {
		header := make([]byte, recordHeader)
		n, err := io.ReadFull(from, header)
		if err != nil {
			_, _ = host.Write(header[:n])
			return io.EOF
		}
		if header[0] == recordHandshake {
			<-d.made // no client continues with its handshake before
		}
		select {
		case <-d.made:
			if !d.retry {
				_, err := host.Write(header)
				return err
			}
		default:
		}
		size := binary.BigEndian.Uint16(header[3:])
		switch {
		case header[0] < recordFirst || header[0] > recordLast || size > maxRecordBytes:
			l.end(Denied, ReasonNoTLS)
			return errRefused
		case header[0] == recordHandshake:
			raw, reason := readHello(ctx, io.MultiReader(bytes.NewReader(header), from), l.target.host)
			if reason != "" {
				l.end(Denied, reason)
				return errRefused
			}
			_, err := host.Write(raw)
			return err
		}
		if _, err := host.Write(header); err != nil {
			return err
		}
		if sent, err := io.CopyN(host, from, int64(size)); err != nil {
			if sent < int64(size) && errors.Is(err, io.EOF) {
				return io.EOF
			}
			return err
		}
	}
}
