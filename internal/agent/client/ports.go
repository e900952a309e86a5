package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"sync"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/transport"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// PortConn is a connection to a port of a sandbox. It is a net.Conn with CloseWrite and without deadlines.
type PortConn = transport.Conn

// DialPort connects to a port of the sandbox's loopback. ctx bounds the dial, not the connection, which the caller closes. Not found: nothing
// listens there. Unavailable: the sandbox is not reached now.
func (l Live) DialPort(ctx context.Context, port int) (*PortConn, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	body := &duplexBody{}
	req, err := http.NewRequestWithContext(life, http.MethodPut, "http://agent"+agent.PortsPath+"/"+strconv.Itoa(port), body.open())
	if err != nil {
		end()
		return nil, fmt.Errorf("make request: %w", err)
	}
	req.GetBody = func() (io.ReadCloser, error) { return body.open(), nil } // nothing is written before the answer
	req.ContentLength = -1
	req.Header.Set("Content-Type", agent.StreamType)
	res, err := l.send(req) //nolint:bodyclose // the connection closes it
	if err == nil && res.Header.Get("Content-Type") != agent.StreamType {
		_ = res.Body.Close()
		err = farm.Errorf(farm.CodeInternal, "the agent answered with %q instead of a connection", farm.Shorten(res.Header.Get("Content-Type")))
	}
	if !stop() && err == nil {
		_ = res.Body.Close()
		err = unavailable(ctx.Err(), "The sandbox did not answer in time.")
	}
	if err != nil {
		end()
		body.close()
		return nil, err
	}
	return transport.NewDuplex(transport.Streams{From: res.Body, To: body, Ended: body.close, Abort: func() {
		end()
		_ = res.Body.Close()
	}}), nil
}

// portValues bounds the JSON values of a port.
const portValues = 8

// Ports lists the ports on which programs of the sandbox listen, by number.
func (l Live) Ports(ctx context.Context) ([]farm.Port, error) {
	var found []farm.Port
	if err := l.callFor(ctx, callTimeout, http.MethodGet, agent.PortsPath, nil, nil, list(&found, agent.MaxPorts, portValues)); err != nil {
		return nil, err
	}
	if len(found) > agent.MaxPorts {
		return nil, farm.Errorf(farm.CodeInternal, "the agent listed %d ports", len(found))
	}
	for i := range found {
		p := &found[i]
		if p.Number < 1 || p.Number > 65535 {
			return nil, farm.Errorf(farm.CodeInternal, "the agent listed port %d", p.Number)
		}
		if address, err := netip.ParseAddr(p.Address); err != nil || address.Zone() != "" {
			return nil, farm.Errorf(farm.CodeInternal, "the agent listed a port of no address")
		}
		p.Command = farm.Shorten(p.Command)
	}
	return found, nil
}

// duplexBody is the body of a request that is written while its answer is read. A request that is sent again gets another one.
type duplexBody struct {
	mu sync.Mutex
	to *io.PipeWriter
}

func (b *duplexBody) open() io.ReadCloser {
	b.close()
	from, to := io.Pipe()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.to = to
	return from
}

func (b *duplexBody) writer() *io.PipeWriter {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.to
}

// Write implements io.Writer.
func (b *duplexBody) Write(p []byte) (int, error) { return b.writer().Write(p) }

func (b *duplexBody) close() {
	if to := b.writer(); to != nil {
		_ = to.Close()
	}
}
