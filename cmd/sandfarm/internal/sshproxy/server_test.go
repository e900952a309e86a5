package sshproxy_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/sshproxy"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// connect serves a sandbox of a farm that is away, and connects to it.
func connect(t *testing.T) *ssh.Client {
	t.Helper()
	return connectTo(t, "http://127.0.0.1:1", nil)
}

func connectTo(t *testing.T, url string, copyFile func(io.Writer, io.Reader) (int64, error)) *ssh.Client {
	t.Helper()
	farm, err := client.New(url)
	testbed.Must(t, err)
	key, err := sshproxy.HostKey(t.TempDir())
	testbed.Must(t, err)
	ours, theirs := pair(t)
	served := make(chan error, 1)
	go func() {
		served <- sshproxy.Serve(t.Context(), theirs, sshproxy.Config{Client: farm, Sandbox: "sbx_1", HostKey: key, Copy: copyFile, Log: slog.New(slog.DiscardHandler)})
	}()
	conn, channels, requests, err := ssh.NewClientConn(ours, "pipe", &ssh.ClientConfig{User: "any", HostKeyCallback: ssh.FixedHostKey(key.PublicKey())})
	testbed.Must(t, err)
	c := ssh.NewClient(conn, channels, requests)
	t.Cleanup(func() {
		_ = c.Close()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return c
}

// pair connects two ends. A net.Pipe has no buffers, and both ends of SSH begin with a write.
func pair(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	defer func() { _ = l.Close() }()
	ours, err = net.Dial("tcp", l.Addr().String())
	testbed.Must(t, err)
	theirs, err = l.Accept()
	testbed.Must(t, err)
	return ours, theirs
}

func TestChannelsAreLimited(t *testing.T) {
	t.Parallel()
	c := connect(t)
	var open []*ssh.Session
	for n := range sshproxy.MaxChannels {
		s, err := c.NewSession()
		if err != nil {
			t.Fatalf("channel %d: %v", n, err)
		}
		open = append(open, s)
	}
	if _, err := c.NewSession(); err == nil || !strings.Contains(err.Error(), "128 channels are open") {
		t.Errorf("one more: %v", err)
	}
	testbed.Must(t, open[0].Close())
	for { // the server learns of it behind its answers
		s, err := c.NewSession()
		if err == nil {
			testbed.Must(t, s.Close())
			break
		}
	}
}

func TestVariablesAreLimited(t *testing.T) {
	t.Parallel()
	s, err := connect(t).NewSession()
	testbed.Must(t, err)
	name := func(n int) string { return "V" + strings.Repeat("x", n) }
	for n := range sshproxy.MaxVariables {
		if err := s.Setenv(name(n), "1"); err != nil {
			t.Fatalf("variable %d: %v", n, err)
		}
	}
	if s.Setenv(name(sshproxy.MaxVariables), "1") == nil {
		t.Error("one more was taken")
	}
	if err := s.Setenv(name(0), "2"); err != nil {
		t.Errorf("a known one: %v", err)
	}
	if s.Setenv("a b", "1") == nil {
		t.Error("a name with a space was taken")
	}
}

// A farm that is away ends the session with a reason, and not the connection.
func TestProgramsThatCannotStart(t *testing.T) {
	t.Parallel()
	c := connect(t)
	s, err := c.NewSession()
	testbed.Must(t, err)
	var message bytes.Buffer
	s.Stderr = &message
	testbed.Must(t, s.RequestPty("xterm", 60000, 0, nil)) // it is brought within limits
	err = s.Run("true")
	if e, ok := err.(*ssh.ExitError); !ok || e.ExitStatus() != 255 || !strings.Contains(message.String(), "sandfarm: ") { //nolint:errorlint // it is not wrapped
		t.Errorf("%v %q", err, message.String())
	}
	if _, err := c.NewSession(); err != nil {
		t.Error(err)
	}
}

func TestChannelsThatAreNotServed(t *testing.T) {
	t.Parallel()
	c := connect(t)
	if _, _, err := c.OpenChannel("x11", nil); err == nil || !strings.Contains(err.Error(), "unknown channel type") {
		t.Errorf("x11: %v", err)
	}
	for address, want := range map[string]string{"example.com:80": "only ports of the sandbox", "10.0.0.1:80": "only ports of the sandbox", "localhost:80": "connect failed"} {
		if _, err := c.Dial("tcp", address); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, data := range [][]byte{nil, []byte("x"), ssh.Marshal(struct {
		Host string
		Port uint32
		From string
		At   uint32
	}{"localhost", 65536, "", 0})} {
		if _, _, err := c.OpenChannel("direct-tcpip", data); err == nil || !strings.Contains(err.Error(), "that is no port") {
			t.Errorf("%q: %v", data, err)
		}
	}
	s, err := c.NewSession()
	testbed.Must(t, err)
	for _, kind := range []string{"auth-agent-req@openssh.com", "x11-req", "exec", "pty-req", "env", "window-change", "signal"} {
		if ok, err := s.SendRequest(kind, true, nil); ok || err != nil {
			t.Errorf("%s without its fields: %t %v", kind, ok, err)
		}
	}
	if err := s.RequestSubsystem("nothing"); err == nil {
		t.Error("a subsystem that there is not was begun")
	}
}

func TestAClientThatLeavesAtOnce(t *testing.T) {
	t.Parallel()
	key, err := sshproxy.HostKey(t.TempDir())
	testbed.Must(t, err)
	ours, theirs := pair(t)
	go func() { _, _ = io.ReadFull(ours, make([]byte, 4)); _ = ours.Close() }()
	farm, err := client.New("")
	testbed.Must(t, err)
	_ = sshproxy.Serve(t.Context(), theirs, sshproxy.Config{Client: farm, Sandbox: "sbx_1", HostKey: key, Log: slog.New(slog.DiscardHandler)}) // it returns
}

// A file that is opened to keep what it has is copied here as other copies are: with their bound.
func TestCopyOfAFileThatIsOpenedIsBounded(t *testing.T) {
	t.Parallel()
	farm := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("depth") {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"items":[{"path":"/a","type":"file","mode":"0644","size":7}]}`)
			return
		}
		_, _ = io.WriteString(w, "content")
	}))
	t.Cleanup(farm.Close)
	files, err := sftp.NewClient(connectTo(t, farm.URL, func(_ io.Writer, content io.Reader) (int64, error) {
		return 0, fmt.Errorf("%d bytes are too much", content.(*client.Content).Size)
	}))
	testbed.Must(t, err)
	t.Cleanup(func() { _ = files.Close() })
	if _, err := files.OpenFile("/a", os.O_WRONLY); err == nil || !strings.Contains(err.Error(), "fetch /a: 7 bytes are too much") {
		t.Errorf("%v", err)
	}
}

func TestHostKey(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "ssh")
	first, err := sshproxy.HostKey(dir)
	testbed.Must(t, err)
	again, err := sshproxy.HostKey(dir)
	testbed.Must(t, err)
	if !bytes.Equal(first.PublicKey().Marshal(), again.PublicKey().Marshal()) {
		t.Error("the key has changed")
	}
	info, err := os.Stat(filepath.Join(dir, "host_key"))
	testbed.Must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("others may do %s with it", info.Mode())
	}
	_, hosts, known, _, _, err := ssh.ParseKnownHosts(fileOf(t, filepath.Join(dir, sshproxy.KnownFile)))
	if err != nil || len(hosts) != 1 || hosts[0] != "*.sandfarm" || !bytes.Equal(known.Marshal(), first.PublicKey().Marshal()) {
		t.Errorf("%v %v", hosts, err)
	}
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "host_key"), []byte("damaged"), 0o600))
	if _, err := sshproxy.HostKey(dir); err == nil || !strings.Contains(err.Error(), "delete it") {
		t.Errorf("a damaged key: %v", err)
	}
}

func fileOf(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	testbed.Must(t, err)
	return text
}
