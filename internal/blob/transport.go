package blob

import (
	"context"
	"net"
	"net/http"
	"time"
)

// dialTimeout bounds making one connection: an object store is on the same network.
const dialTimeout = 5 * time.Second

// newTransport makes an HTTP transport that times out when no byte moves, never because a transfer takes long.
func newTransport(stall time.Duration) *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return newStallConn(conn, stall), nil
		},
		MaxIdleConns:        256,
		MaxIdleConnsPerHost: 32,
		IdleConnTimeout:     stall,
		TLSHandshakeTimeout: dialTimeout,
		// Objects are stored as they are: gzipped content is returned gzipped.
		DisableCompression: true,
		WriteBufferSize:    64 << 10,
		ReadBufferSize:     64 << 10,
	}
}
