package localkernel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
)

// maxConnectionFile is the largest connection file, in bytes: another file was named by mistake if it is larger.
const maxConnectionFile = 64 << 10

// Connection is where a kernel is to listen, as a connection file of Jupyter says it.
type Connection struct {
	Transport string `json:"transport"` // tcp or ipc
	IP        string `json:"ip"`        // of ipc the beginning of the paths
	Shell     int    `json:"shell_port"`
	IOPub     int    `json:"iopub_port"`
	Stdin     int    `json:"stdin_port"`
	Control   int    `json:"control_port"`
	Heartbeat int    `json:"hb_port"`
	Key       string `json:"key"` // signs the messages; "": they are not signed
	Scheme    string `json:"signature_scheme"`

	file string
}

// ReadConnection reads a connection file.
func ReadConnection(path string) (Connection, error) {
	c := Connection{file: path}
	f, err := os.Open(path)
	if err != nil {
		return c, fmt.Errorf("read the connection file: %w", err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxConnectionFile+1))
	if err != nil {
		return c, fmt.Errorf("read the connection file: %w", err)
	}
	if len(text) > maxConnectionFile || json.Unmarshal(text, &c) != nil {
		return c, fmt.Errorf("%s is no connection file of Jupyter", path)
	}
	switch {
	case c.Transport != "tcp" && c.Transport != "ipc":
		return c, fmt.Errorf("the connection file %s has the transport %q; tcp and ipc are known", path, c.Transport)
	case c.IP == "":
		return c, fmt.Errorf("the connection file %s has no ip", path)
	case c.Key != "" && c.Scheme != "hmac-sha256":
		return c, fmt.Errorf("the connection file %s has the signature_scheme %q; only hmac-sha256 is known", path, c.Scheme)
	}
	for _, port := range []int{c.Shell, c.IOPub, c.Stdin, c.Control, c.Heartbeat} {
		if port < 1 || port > 65535 {
			return c, fmt.Errorf("the connection file %s lacks a port, or has one that is not valid", path)
		}
	}
	return c, nil
}

// listen listens at a port of the file.
func (c Connection) listen(ctx context.Context, port int) (net.Listener, error) {
	var config net.ListenConfig
	network, at := "tcp", net.JoinHostPort(c.IP, strconv.Itoa(port))
	if c.Transport == "ipc" {
		network, at = "unix", c.IP+"-"+strconv.Itoa(port)
		if err := os.Remove(at); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("remove the socket of an earlier kernel: %w", err)
		}
	}
	l, err := config.Listen(ctx, network, at)
	if err != nil {
		return nil, fmt.Errorf("listen where the connection file says: %w", err)
	}
	return l, nil
}

// session is the path of the farm's session for this connection: the same when the client restarts the kernel, and another one for every other
// kernel. It does not tell the key.
func (c Connection) session() string {
	seed := c.Key
	if seed == "" {
		host, _ := os.Hostname() // the path alone is the best there is
		seed = host + " " + c.file
	}
	sum := sha256.Sum256([]byte("sandfarm kernel " + seed))
	return "local/" + hex.EncodeToString(sum[:16])
}
