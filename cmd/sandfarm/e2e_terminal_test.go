//go:build integration

package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// person is somebody at a terminal in which the program runs.
type person struct {
	t        testing.TB
	cmd      *exec.Cmd
	keyboard *os.File // our end of the terminal
	theirs   *os.File
	seen     []byte // and not looked at yet
}

// sitDown runs the program on a new terminal of 100 columns and 30 rows.
func (f *farmProcess) sitDown(args ...string) *person {
	f.t.Helper()
	return f.sitDownAt(append(os.Environ(), "SANDFARM_URL="+f.url), append([]string{program}, args...)...)
}

// sitDownAt does it with any program and environment.
func (f *farmProcess) sitDownAt(env []string, argv ...string) *person {
	f.t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	testbed.Must(f.t, err)
	number, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	testbed.Must(f.t, err)
	testbed.Must(f.t, unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0))
	theirs, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	testbed.Must(f.t, err)
	testbed.Must(f.t, unix.SetNonblock(int(ours.Fd()), true)) // Fd made it block, and a deadline needs the opposite
	ours = os.NewFile(uintptr(dup(f.t, ours)), "terminal")
	p := &person{t: f.t, keyboard: ours, theirs: theirs, cmd: exec.Command(argv[0], argv[1:]...)}
	p.size(100, 30)
	p.cmd.Env = append(env[:len(env):len(env)], "TERM=xterm-256color")
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = theirs, theirs, theirs
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	testbed.Must(f.t, p.cmd.Start())
	f.t.Cleanup(func() { _ = p.cmd.Process.Kill(); _ = ours.Close(); _ = theirs.Close() })
	return p
}

// dup duplicates the descriptor of a file, so that the runtime polls it anew, and closes the file.
func dup(t testing.TB, f *os.File) int {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	testbed.Must(t, err)
	testbed.Must(t, unix.SetNonblock(fd, true))
	testbed.Must(t, f.Close())
	return fd
}

func (p *person) size(cols, rows uint16) {
	p.t.Helper()
	testbed.Must(p.t, unix.IoctlSetWinsize(int(p.theirs.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: cols, Row: rows}))
}

func (p *person) types(keys string) {
	p.t.Helper()
	_, err := p.keyboard.WriteString(keys)
	testbed.Must(p.t, err)
}

// sees reads the screen until it has want, and returns what comes up to there.
func (p *person) sees(want string) string {
	p.t.Helper()
	testbed.Must(p.t, p.keyboard.SetReadDeadline(time.Now().Add(time.Minute)))
	buf := make([]byte, 4096)
	for {
		if i := bytes.Index(p.seen, []byte(want)); i >= 0 {
			got := string(p.seen[:i])
			p.seen = p.seen[i+len(want):]
			return got
		}
		n, err := p.keyboard.Read(buf)
		if p.seen = append(p.seen, buf[:n]...); err != nil && n == 0 {
			p.t.Fatalf("%q does not come: %v, after %q", want, err, p.seen)
		}
	}
}

// leaves waits for the end of the program, whose terminal must be as it was, and returns its exit code.
func (p *person) leaves(before *unix.Termios) int {
	p.t.Helper()
	err := p.cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		p.t.Fatal(err)
	}
	if after := p.mode(); *after != *before {
		p.t.Errorf("the terminal is left as %+v, and was %+v", after, before)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *person) mode() *unix.Termios {
	p.t.Helper()
	mode, err := unix.IoctlGetTermios(int(p.theirs.Fd()), unix.TCGETS)
	testbed.Must(p.t, err)
	return mode
}

func TestTerminals(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	box := f.sandbox(wire.CreateRequest{}).ID
	for name, test := range map[string]func(*testing.T, *farmProcess, string){
		"Shell": shellOnATerminal, "Leave": leaveAndComeBack, "FullScreen": fullScreen, "Pipes": execOnPipes, "Restarts": execStartedAgain, "Site": aSiteInASandbox, "Killed": killedClient,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := *f
			own.t = t
			test(t, &own, box)
		})
	}
}

func shellOnATerminal(_ *testing.T, f *farmProcess, box string) {
	p := f.sitDown("ssh", box)
	before := p.mode()
	p.sees("$ ")
	p.types("stty size\r")
	p.sees("30 100\r\n")
	p.size(120, 40) // the kernel sends SIGWINCH
	p.types("until [ \"$(stty size)\" = '40 120' ]; do :; done; echo re''sized\r")
	p.sees("resized\r\n")
	p.types("echo re''ady; cat\r")
	p.sees("ready\r\n")
	p.types("line\r")
	p.sees("line\r\nline\r\n") // the echo and cat
	p.types("\x03")
	p.sees("^C")
	p.sees("$ ") // what is typed before bash's prompt is lost on any terminal
	p.types("echo st=$?\r")
	p.sees("st=130")
	p.types("~?")
	p.sees("~~  a tilde")
	p.types("\rexit 9\r")
	testbed.Diff(p.t, "exit code", 9, p.leaves(before))
}

func leaveAndComeBack(t *testing.T, f *farmProcess, box string) {
	p := f.sitDown("ssh", box)
	before := p.mode()
	p.sees("$ ")
	p.types("x=remembered; trap '' HUP\r")
	p.sees("$ ")
	p.types("~.")
	p.sees("runs on: sandfarm attach " + box + " ")
	process := p.sees("\r\n")
	testbed.Diff(t, "exit code", 0, p.leaves(before))
	again := f.sitDown("attach", box, process)
	before = again.mode()
	again.sees("$ ")
	again.types("echo it=$x; kill -9 $$\r")
	again.sees("it=remembered\r\n")
	testbed.Diff(t, "exit code", 137, again.leaves(before))
	list, err := exec.Command(program, "--url", f.url, "ps", box).Output()
	if err != nil || !strings.Contains(string(list), process) || !strings.Contains(string(list), "exit 137") {
		t.Errorf("%s, %v", list, err)
	}
}

// A program that draws the whole screen has the keyboard to itself, and leaves the terminal as it was.
func fullScreen(t *testing.T, f *farmProcess, box string) {
	p := f.sitDown("sandbox", "exec", "-it", box, "--", "top")
	before := p.mode()
	p.sees("load average")
	p.sees("COMMAND")
	p.types("h")
	p.sees("Help for Interactive Commands")
	p.types("q")
	p.sees("load average")
	p.types("q")
	testbed.Diff(t, "exit code", 0, p.leaves(before))
}

func execOnPipes(t *testing.T, f *farmProcess, box string) {
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // 2 MiB
	cmd := exec.Command(program, "--url", f.url, "sandbox", "exec", "-i", box, "cat; echo problem >&2; exit 3")
	var out, problems bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(sent), &out, &problems
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != 3 || !bytes.Equal(out.Bytes(), sent) || problems.String() != "problem\n" {
		t.Errorf("%v: %d bytes, %q", err, out.Len(), problems.String())
	}
	out.Reset()
	piped := exec.Command(program, "--url", f.url, "ssh", box)
	piped.Stdin, piped.Stdout = strings.NewReader("tty; python -c 'print(6 * 7)'; (exit 4)\n"), &out
	if _ = piped.Run(); piped.ProcessState.ExitCode() != 4 || out.String() != "not a tty\n42\n" { // the end of the input ends the shell
		t.Errorf("exit code %d: %q", piped.ProcessState.ExitCode(), out.String())
	}
	out.Reset()
	id, err := exec.Command(program, "--url", f.url, "exec", "-it", "--background", "--restart", "never", box, "cat; exit 5").Output()
	typed := exec.CommandContext(t.Context(), program, "--url", f.url, "attach", box, strings.TrimSpace(string(id)))
	typed.Stdin, typed.Stdout = strings.NewReader("a line\n"), &out
	if _ = typed.Run(); err != nil || typed.ProcessState.ExitCode() != 5 || !strings.Contains(out.String(), "a line\r\n") { // so does it on a terminal
		t.Errorf("%v, exit code %d: %q", err, typed.ProcessState.ExitCode(), out.String())
	}
}

func execStartedAgain(t *testing.T, f *farmProcess, box string) {
	const job = `n=$(cat runs 2>/dev/null || echo 0); echo run $n; echo $((n+1)) > runs; test $n = 2 || exit 1`
	out, err := exec.Command(program, "--url", f.url, "sandbox", "exec", "--restart", "on-failure", box, job).CombinedOutput()
	if err != nil || string(out) != "run 0\nrun 1\nrun 2\n" {
		t.Errorf("%v: %q", err, out)
	}
	out, err = exec.Command(program, "--url", f.url, "sandbox", "exec", "--background", "--restart", "on-failure", box, "sleep 1000.25").Output()
	id := strings.TrimSpace(string(out))
	if err != nil || !strings.HasPrefix(id, "prc_") {
		t.Fatalf("%v: %q", err, out)
	}
	p, err := f.Process(t.Context(), box, id)
	if err != nil || p.Restart != "on-failure" || p.State != "running" {
		t.Errorf("%v: %+v", err, p)
	}
	p, err = f.EndProcess(t.Context(), box, id)
	if err != nil || !p.Stopped || p.Restarts != 0 {
		t.Errorf("%v: %+v", err, p)
	}
}

// A client that is asked to end restores the terminal, and ends the command that it started.
func killedClient(t *testing.T, f *farmProcess, box string) {
	p := f.sitDown("sandbox", "exec", "-it", box, "--", "sh", "-c", "echo up; exec sleep 1000.5")
	before := p.mode()
	p.sees("up\r\n")
	testbed.Must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	testbed.Diff(t, "exit code", 130, p.leaves(before))
	ctx, done := context.WithTimeout(t.Context(), time.Minute)
	defer done()
	list, err := f.Processes(ctx, box)
	testbed.Must(t, err)
	for _, p := range list {
		if strings.Contains(strings.Join(p.Argv, " "), "1000.5") && p.State == "running" {
			t.Errorf("%+v runs on", p)
		}
	}
}

// siteSource is a web server and a WebSocket that echoes, without a library. It prints its port when it listens.
const siteSource = `
import base64, hashlib, http.server

class Site(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("Upgrade") == "websocket":
            return self.echo()
        body = f"{self.path} for {self.headers['X-Forwarded-Host']}, key {self.headers['Authorization']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        size = int(self.headers["Content-Length"])
        digest = hashlib.sha256()
        while size:
            part = self.rfile.read(min(size, 65536))
            digest.update(part)
            size -= len(part)
        body = digest.hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def echo(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        while True:
            kind, size = self.rfile.read(2)
            mask, text = self.rfile.read(4), self.rfile.read(size & 127)
            if kind & 15 == 8:
                break
            text = bytes(b ^ mask[i % 4] for i, b in enumerate(text))
            self.wfile.write(bytes([kind, len(text)]) + text)
        self.close_connection = True

    def log_message(self, *args):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
print(server.server_port, flush=True)
server.serve_forever()
`

// requested makes a request of the farm, by whatever host the URL names it, and returns the status and the body of the answer.
func (f *farmProcess) requested(t *testing.T, method, url string, body io.Reader) (status int, text string) {
	t.Helper()
	way := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, strings.TrimPrefix(f.url, "http://"))
	}}
	defer way.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	testbed.Must(t, err)
	if body != nil {
		r.ContentLength = bodyBytes
	}
	answer, err := (&http.Client{Transport: way}).Do(r)
	testbed.Must(t, err)
	defer func() { _ = answer.Body.Close() }()
	raw, err := io.ReadAll(answer.Body)
	testbed.Must(t, err)
	return answer.StatusCode, string(raw)
}

// bodyBytes is the size of the bodies that are sent.
const bodyBytes = 1 << 20

// A web server of a real sandbox is reached through the API, a worker and the engine: by the caller's key, by a WebSocket, and by a link.
func aSiteInASandbox(t *testing.T, f *farmProcess, box string) {
	_, err := f.StartProcess(t.Context(), box, wire.ProcessRequest{Command: new("pwd"), Cwd: "/root"})
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != http.StatusUnprocessableEntity || !strings.Contains(e.Error(), "may not be entered") {
		t.Errorf("a directory that is closed: %v", err)
	}
	p, err := f.StartProcess(t.Context(), box, wire.ProcessRequest{Argv: []string{"python3", "-c", siteSource}})
	testbed.Must(t, err)
	port := ""
	for e, err := range f.ProcessEvents(t.Context(), box, p.ID, "") {
		testbed.Must(t, err)
		var data wire.TextData
		if err := json.Unmarshal(e.Data, &data); err == nil && e.Name == "stdout" {
			port = strings.TrimSpace(data.Text) // the end of the line may come by itself
			break
		}
		t.Fatalf("the server: %s %s", e.Name, e.Data)
	}
	number, err := strconv.Atoi(port)
	testbed.Must(t, err)
	at := "/v1/sandboxes/" + box + "/ports/" + port
	if status, body := f.requested(t, http.MethodGet, f.url+at+"/a?b=c", nil); status != http.StatusOK || body != "/a?b=c for "+strings.TrimPrefix(f.url, "http://")+", key None" {
		t.Errorf("GET: %d %q", status, body)
	}
	const digest = "30e14955ebf1352266dc2ff8067e68104607e750abb9d3b36582b8af909fcb58" // of 1 MiB of zeros
	if status, body := f.requested(t, http.MethodPost, f.url+at+"/", io.LimitReader(zeros{}, bodyBytes)); status != http.StatusOK || body != digest {
		t.Errorf("POST: %d %q", status, body)
	}
	ws, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(f.url, "http")+at+"/ws", nil)
	testbed.Must(t, err)
	for _, text := range []string{"one", "two"} {
		testbed.Must(t, ws.Write(t.Context(), websocket.MessageText, []byte(text)))
		if kind, got, err := ws.Read(t.Context()); err != nil || kind != websocket.MessageText || string(got) != text {
			t.Errorf("WebSocket: %v, %q", err, got)
		}
	}
	_ = ws.CloseNow()
	list, err := f.Ports(t.Context(), box)
	testbed.Must(t, err)
	found := false
	for _, one := range list {
		found = found || one.Port == number && one.PID != nil && *one.PID == p.PID
	}
	if !found {
		t.Errorf("ports: %+v", list)
	}
	link, err := f.LinkPort(t.Context(), box, wire.PortLinkRequest{Port: number})
	testbed.Must(t, err)
	if status, body := f.requested(t, http.MethodGet, link.URL, nil); status != http.StatusOK || !strings.HasPrefix(body, "/") {
		t.Errorf("link %s: %d %q", link.URL, status, body)
	}
	_, err = f.EndProcess(t.Context(), box, p.ID)
	testbed.Must(t, err)
	if status, body := f.requested(t, http.MethodGet, f.url+at+"/", nil); status != http.StatusBadGateway {
		t.Errorf("after its end: %d %q", status, body)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
