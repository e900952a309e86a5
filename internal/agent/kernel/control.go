package kernel

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// maxControlBytes bounds a message of a kernel; the largest are displays. LARGEST of launcher.py is the same.
	maxControlBytes = 48 << 20
	// maxControlFDs bounds the descriptors received ahead of their message.
	maxControlFDs = 8
)

// controlMessage is a message of a kernel.
type controlMessage struct {
	Op     string `json:"op"`     // ready, begin (with the pipes of stdout and stderr), display, clear, reply, answer, message
	ID     string `json:"id"`     // of the execution: begin, display, clear
	Number uint64 `json:"number"` // of a display, clear or input_request, which the kernel waits for; of an answer: the question's

	Data      map[string]string `json:"data"`       // of a display: a MIME bundle
	Metadata  json.RawMessage   `json:"metadata"`   // of a display: an object; may be empty
	DisplayID string            `json:"display_id"` // of a display: IPython's name of the value; may be empty
	Update    bool              `json:"update"`     // of a display: the value replaces the one with that name
	Result    bool              `json:"result"`     // of a display: it is the value of the cell's last expression
	Wait      bool              `json:"wait"`       // of a clear: only when something else is displayed

	Kind    string          `json:"kind"`    // of a message to notebooks: comm_open, stream, input_request, …
	Parent  string          `json:"parent"`  // of a message to notebooks: the id of the message that caused it; may be empty
	Content json.RawMessage `json:"content"` // of a reply, answer or message
}

// shown tells a kernel that a displayed value and the output before it have been read.
type shown struct {
	Op     string `json:"op"`
	Number uint64 `json:"number"`
}

// control is the socket to a kernel. A message is a length of 4 bytes, then JSON; one of the kernel may carry descriptors.
type control struct {
	conn *net.UnixConn
	data []byte
	fds  []int

	writing sync.Mutex
}

// newControl creates a pair of sockets: ours, and a descriptor for the kernel that the caller closes.
func newControl() (*control, int, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("make control socket: %w", err)
	}
	file := os.NewFile(uintptr(pair[0]), "control") //nolint:gosec // a descriptor is small
	defer func() { _ = file.Close() }()
	conn, err := net.FileConn(file)
	if err != nil {
		_ = unix.Close(pair[1])
		return nil, 0, fmt.Errorf("use control socket: %w", err)
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		_ = unix.Close(pair[1])
		return nil, 0, errors.New("use control socket: not a unix socket")
	}
	return &control{conn: unixConn}, pair[1], nil
}

// read returns the next message.
func (c *control) read() (controlMessage, error) {
	for {
		if len(c.data) >= 4 {
			size := int(binary.BigEndian.Uint32(c.data))
			if size > maxControlBytes {
				return controlMessage{}, fmt.Errorf("read control message: %d bytes are too many", size)
			}
			if len(c.data) >= 4+size {
				var m controlMessage
				err := json.Unmarshal(c.data[4:4+size], &m)
				c.data = append([]byte(nil), c.data[4+size:]...)
				return m, err
			}
		}
		if err := c.fill(); err != nil {
			return controlMessage{}, err
		}
	}
}

// fill reads more bytes and the descriptors that come with them.
func (c *control) fill() error {
	size := 4 << 10
	if len(c.data) >= 4 {
		size = min(max(4+int(binary.BigEndian.Uint32(c.data))-len(c.data), size), 256<<10)
	}
	buf, oob := make([]byte, size), make([]byte, unix.CmsgSpace(4*maxControlFDs))
	n, oobn, _, _, err := c.conn.ReadMsgUnix(buf, oob)
	if oobn > 0 {
		c.takeFDs(oob[:oobn])
	}
	c.data = append(c.data, buf[:max(n, 0)]...)
	if err == nil && n <= 0 {
		err = io.EOF
	}
	return err
}

func (c *control) takeFDs(oob []byte) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			if len(c.fds) >= maxControlFDs {
				_ = unix.Close(fd)
				continue
			}
			c.fds = append(c.fds, fd)
		}
	}
}

// pipes returns the two descriptors that came with a message.
func (c *control) pipes() (out, err int, ok bool) {
	if len(c.fds) < 2 {
		return 0, 0, false
	}
	out, err = c.fds[0], c.fds[1]
	c.fds = c.fds[2:]
	return out, err, true
}

// write sends a message.
func (c *control) write(message any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode control message: %w", err)
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if _, err := c.conn.Write(append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body))), body...)); err != nil { //nolint:gosec // requests are smaller
		return fmt.Errorf("write control message: %w", err)
	}
	return nil
}

// close closes the socket. Only the reader calls it.
func (c *control) close() {
	_ = c.conn.Close()
	for _, fd := range c.fds {
		_ = unix.Close(fd)
	}
}
