package farmd

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	detailEvery    = 2 * time.Second  // between two lines of a step's output, which would fill the screen
	heartbeatAfter = 10 * time.Second // without output, a line says that work continues
	detailLength   = 120              // bytes of a line that are shown
)

// console prints the progress for the user at the terminal. It is safe for concurrent use.
type console struct {
	out   io.Writer
	began time.Time

	mu       sync.Mutex
	progress string    // the last line of progress; empty: there was none
	step     string    // such as "step 3 of 12"; empty: none
	at       time.Time // of the last line
}

// newConsole makes a console whose times count from now.
func newConsole(out io.Writer) *console { return &console{out: out, began: time.Now()} }

// line prints a sentence.
func (c *console) line(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = fmt.Fprintln(c.out, "sandfarm: "+text)
}

// printProgress prints how far an image build is, with the time since the start: every step, and some of its output.
func (c *console) printProgress(p farm.Progress) {
	text := strings.TrimSpace(p.Message)
	c.mu.Lock()
	defer c.mu.Unlock()
	if text == "" || text == c.progress {
		return
	}
	now := time.Now()
	step := ""
	if p.Total > 0 {
		step = fmt.Sprintf("step %.0f of %.0f", p.Done+1, p.Total)
	}
	switch {
	case step != c.step && step != "":
		if _, command, ok := strings.Cut(text, " : "); ok && strings.HasPrefix(text, "Step ") {
			text = command
		}
		text = step + ": " + text
	case now.Sub(c.at) < detailEvery:
		return
	case step != "":
		text = "  " + text
	}
	c.step, c.progress = step, strings.TrimSpace(p.Message)
	c.elapsed(now, text)
}

// elapsed prints a line of progress with the time since the start, such as "[ 1:05] step 3 of 12: RUN pip install".
func (c *console) elapsed(now time.Time, text string) {
	if len(text) > detailLength {
		text = text[:detailLength] + "…"
	}
	c.at = now
	seconds := int(now.Sub(c.began).Seconds())
	_, _ = fmt.Fprintf(c.out, "  [%2d:%02d] %s\n", seconds/60, seconds%60, strings.ToValidUTF8(text, "?"))
}

// watch prints a line whenever an image build is silent for a while, until stop is called.
func (c *console) watch() (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(heartbeatAfter / 2)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				c.heartbeat()
			}
		}
	}()
	return func() { close(done); <-ended }
}

func (c *console) heartbeat() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.progress == "" || now.Sub(c.at) < heartbeatAfter {
		return
	}
	text := "still working"
	if c.step != "" {
		text += " on " + c.step
	}
	c.elapsed(now, text)
}

// welcome prints how to use the farm that listens on addr. program is how this program was started; data is its folder if a setting says so,
// which a command on this machine has to know too.
func (c *console) welcome(program, data, addr string, keys bool) {
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		addr = net.JoinHostPort("127.0.0.1", port) // a client cannot connect to "all addresses"
	}
	url, header, curl, note := "http://"+addr, "", "", ""
	if keys {
		header, curl = `, "headers": {"Authorization": "Bearer YOUR_KEY"}`, ` -H "Authorization: Bearer $SANDFARM_API_KEY"`
		note = ", with a key in SANDFARM_API_KEY"
	}
	local := program
	if data != "" {
		local = "SANDFARM_DATA='" + strings.ReplaceAll(data, "'", `'\''`) + "' " + program
	}
	c.line("the farm is ready. Ctrl-C stops it; sandboxes, jobs and files are kept for the next start.\n")
	_, _ = fmt.Fprintf(c.out, `  dashboard   %[1]s/
  API         %[1]s/v1
  docs        %[1]s/docs
  health      %[1]s/readyz
  metrics     %[1]s/metrics
  MCP         %[1]s/mcp
  API keys    %[6]s key create --local --tenant NAME --scope admin --scope run

Try it in another terminal%[5]s:

  echo 'print(6 * 7)' | %[4]s run - --url %[1]s
  curl -s '%[1]s/v1/run?wait=30'%[3]s -H 'Content-Type: application/json' -d '{"code": "print(6 * 7)"}'

For models, put this into the configuration of an MCP client ("%[4]s mcp config --client NAME" prints the form of
claude-code, claude-desktop, cursor and vscode):

  {"mcpServers": {"sandfarm": {"type": "http", "url": "%[1]s/mcp"%[2]s}}}

`, url, header, curl, program, note, local)
}
