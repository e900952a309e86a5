package outbound

import (
	"bytes"
	"context"
	"crypto/tls"
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
	// extensionECH is the TLS extension encrypted_client_hello. Some clients send it with random content; nobody can tell.
	extensionECH = 0xfe0d
	// recordHandshake is the type of TLS records with handshake messages.
	recordHandshake = 22
)

// errHello ends the handshake when the ClientHello is there.
var errHello = errors.New("the ClientHello is complete")

// readHello reads a ClientHello, however it is split, and returns all bytes that were read. reason says why it does not fit a tunnel to host.
// crypto/tls parses it, which refuses extensions and names that occur twice: no server may read another name.
func readHello(ctx context.Context, from io.Reader, host string) (raw []byte, reason string) {
	var read bytes.Buffer
	var name string
	var extensions []uint16
	conn := &helloConn{from: io.TeeReader(io.LimitReader(from, maxHelloBytes), &read)}
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
	case !errors.Is(err, errHello):
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
