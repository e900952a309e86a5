package kernel

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/go-zeromq/zmq4"
)

// endpoints is a Jupyter connection file.
type endpoints struct {
	Transport string `json:"transport"`
	IP        string `json:"ip"`
	Shell     int    `json:"shell_port"`
	IOPub     int    `json:"iopub_port"`
	Stdin     int    `json:"stdin_port"`
	Control   int    `json:"control_port"`
	Heartbeat int    `json:"hb_port"`
	Key       string `json:"key"`
	Scheme    string `json:"signature_scheme"`
	Name      string `json:"kernel_name"`
}

// ipcEndpoints are sockets in the agent's directory, so that no ports are needed.
func ipcEndpoints(dir, id string, c codec) endpoints {
	return endpoints{
		Transport: "ipc", IP: filepath.Join(dir, id), Shell: 1, IOPub: 2, Stdin: 3, Control: 4, Heartbeat: 5,
		Key: string(c.key), Scheme: "hmac-sha256",
	}
}

// Ports for kernels are below those that Linux gives to programs that ask for any (32768 to 60999): such a program could take one between
// the search and the start of the kernel.
const (
	firstPort    = 20000
	ports        = 12000
	portAttempts = 100
)

// freePort listens on a free port of the loopback.
func freePort(ctx context.Context) (l net.Listener, port int, err error) {
	var config net.ListenConfig
	for range portAttempts {
		port = firstPort + rand.IntN(ports) //nolint:gosec // not a secret
		if l, err = config.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return l, port, nil
		}
	}
	return nil, 0, fmt.Errorf("find a port: %w", err)
}

// tcpEndpoints are free ports of the loopback, for kernels that support only TCP.
func tcpEndpoints(ctx context.Context, c codec) (endpoints, error) {
	e := endpoints{Transport: "tcp", IP: "127.0.0.1", Key: string(c.key), Scheme: "hmac-sha256"}
	for _, port := range []*int{&e.Shell, &e.IOPub, &e.Stdin, &e.Control, &e.Heartbeat} {
		l, free, err := freePort(ctx)
		if err != nil {
			return e, err
		}
		defer func() { _ = l.Close() }() // keep all open until the last one is found
		*port = free
	}
	return e, nil
}

func (e endpoints) write(path string) error {
	raw, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode connection file: %w", err)
	}
	return os.WriteFile(path, raw, 0o600)
}

func (e endpoints) remove() {
	if e.Transport != "ipc" {
		return
	}
	for port := 1; port <= 5; port++ {
		_ = os.Remove(e.IP + "-" + strconv.Itoa(port))
	}
}

// address returns the network and address of a port.
func (e endpoints) address(port int) (network, address string) {
	if e.Transport == "ipc" {
		return "unix", e.IP + "-" + strconv.Itoa(port)
	}
	return "tcp", net.JoinHostPort(e.IP, strconv.Itoa(port))
}

// connectPause is the time between two attempts to connect to a kernel.
const connectPause = 10 * time.Millisecond

// connect opens one channel of a kernel. It waits until the kernel listens or quit is closed. The channel lives as long as ctx.
func (e endpoints) connect(ctx context.Context, port int, quit <-chan struct{}, open func(context.Context, ...zmq4.Option) zmq4.Socket) (zmq4.Socket, error) {
	network, address := e.address(port)
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(ctx, network, address)
		if err == nil {
			_ = conn.Close()
			break
		}
		select {
		case <-quit:
			return nil, fmt.Errorf("connect to kernel: %w", err)
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(connectPause):
		}
	}
	socket := open(ctx)
	if err := socket.Dial(boundedScheme(network) + "://" + address); err != nil {
		_ = socket.Close()
		return nil, fmt.Errorf("connect to kernel: %w", err)
	}
	return socket, nil
}
