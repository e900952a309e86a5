package outbound

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// maxHelloBytes bounds a ClientHello with the headers of its records. Those with keys for post-quantum exchanges and a ticket have some 3 KiB.
	maxHelloBytes = 32 << 10
	// extensionECH is the TLS extension encrypted_client_hello. Some clients send it with random content, which cannot be distinguished.
	extensionECH = 0xfe0d
	// recordHandshake is the type of TLS records with handshake messages.
	recordHandshake = 22
)

// errHello ends the handshake when the ClientHello is there.
var errHello = errors.New("the ClientHello is complete")

// readHello reads a ClientHello, however it is split, and nothing after it. reason says why it does not fit a tunnel to host.
// crypto/tls parses it, which refuses extensions and names that occur twice: no server may read another name.
func readHello(ctx context.Context, from io.Reader, host string) (raw []byte, reason string) {
	var read bytes.Buffer
	var name string
	var extensions []uint16
	conn := &helloConn{from: io.TeeReader(&recordReader{from: io.LimitReader(from, maxHelloBytes)}, &read)}
	err := tls.Server(conn, &tls.Config{
		MinVersion: tls.VersionTLS12, // of no effect: the handshake ends before versions are compared
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name, extensions = hello.ServerName, slices.Clone(hello.Extensions)
			return nil, errHello
		},
	}).HandshakeContext(ctx)
	raw = read.Bytes()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return raw, ReasonHello
	case !errors.Is(err, errHello) || !oneMessage(raw):
		return raw, ReasonNoTLS
	case slices.Contains(extensions, extensionECH):
		return raw, ReasonECH
	case name == "":
		return raw, ReasonNoSNI
	}
	if normal, ok := farm.NormalHost(name); !ok || normal != host {
		return raw, ReasonSNI
	}
	return raw, ""
}

// recordReader reads no further than to the end of the record that was asked for.
type recordReader struct {
	from io.Reader
	head []byte // what is there of the header of this record
	left int    // what is missing of its content
}

// Read reads from one record.
func (r *recordReader) Read(b []byte) (int, error) {
	if len(r.head) == recordHeader && r.left == 0 {
		r.head = r.head[:0]
	}
	if missing := recordHeader - len(r.head); missing > 0 {
		n, err := r.from.Read(b[:min(len(b), missing)])
		if r.head = append(r.head, b[:n]...); len(r.head) == recordHeader {
			r.left = int(binary.BigEndian.Uint16(r.head[3:]))
		}
		return n, err
	}
	n, err := r.from.Read(b[:min(len(b), r.left)])
	r.left -= n
	return n, err
}

// oneMessage reports whether records have one handshake message and nothing else. A second ClientHello could follow the first.
func oneMessage(records []byte) bool {
	var message []byte
	for len(records) >= recordHeader && records[0] == recordHandshake {
		end := recordHeader + int(binary.BigEndian.Uint16(records[3:]))
		if end > len(records) {
			return false
		}
		message = append(message, records[recordHeader:end]...)
		records = records[end:]
	}
	const header = 4
	return len(records) == 0 && len(message) >= header && len(message)-header == int(message[1])<<16|int(message[2])<<8|int(message[3])
}

// alert is the TLS alert access_denied.
var alert = []byte{21, 3, 3, 0, 2, 2, 49}

// helloConn lets crypto/tls read a ClientHello and discards its answers.
type helloConn struct {
	net.Conn // nil: nothing else is called
	from     io.Reader
}

// Read reads from the client.
func (c *helloConn) Read(b []byte) (int, error) { return c.from.Read(b) }

// Close does nothing: the tunnel closes the connection.
func (c *helloConn) Close() error { return nil }

// Write discards.
func (c *helloConn) Write(b []byte) (int, error) { return len(b), nil }
