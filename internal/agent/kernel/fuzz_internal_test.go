package kernel

import (
	"encoding/binary"
	"encoding/json"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// User code can send anything on the kernel's control socket: each message is read within its bounds, and what is none ends the reading.
func FuzzControl(f *testing.F) {
	message := func(body string) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...) //nolint:gosec // short
	}
	for _, seed := range [][]byte{
		nil,
		{0},
		{0xff, 0xff, 0xff, 0xff},
		message(""), message("{}"), message(`{"op":"ready"}`), message(`{"op":"begin","id":"job_1"}`),
		message(`{"op":"display","id":"x","number":1,"data":{"text/plain":"x"},"metadata":{},"display_id":"n","update":true}`),
		message(`{"op":"display","data":7}`), message(`{"op":"clear","wait":true}`), message(`{"op":"reply","content":{"id":"x","exit":-1,"traceback":["\ud800"]}}`),
		append(message(`{"op":"comm","content":[[[[]]]]}`), message(`null`)...), message(`{"op":"ready"}`)[:7],
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		c, peer, err := newControl()
		if err != nil {
			t.Fatal(err)
		}
		defer c.close()
		go func() {
			for sent := 0; sent < len(in); {
				n, err := unix.Write(peer, in[sent:])
				if err != nil {
					break
				}
				sent += n
			}
			_ = unix.Close(peer)
		}()
		_ = c.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		for read := 0; ; {
			m, err := c.read()
			if err != nil {
				if cap(c.data) > maxControlBytes+1<<20 {
					t.Fatalf("%d bytes are kept", cap(c.data))
				}
				return
			}
			if read++; read > len(in)/4 {
				t.Fatalf("%d messages in %d bytes", read, len(in))
			}
			var r reply
			if m.Op == "reply" && json.Unmarshal(m.Content, &r) == nil {
				_ = r.outcome()
			}
			if len(c.fds) > maxControlFDs {
				t.Fatalf("%d descriptors are kept", len(c.fds))
			}
		}
	})
}
