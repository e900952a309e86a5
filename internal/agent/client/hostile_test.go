package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// Data on a stream that the worker did not request would stay in the worker's memory.
func TestAStreamThatTheAgentOpensEndsTheSession(t *testing.T) {
	t.Parallel()
	c, session := hostileAgent(t, client.Options{})
	if _, err := session.Open(); err != nil && !errors.Is(err, yamux.ErrSessionShutdown) { // the session may end before Open returns
		t.Fatal(err)
	}
	awaitEnd(t, c, "a stream that it did not request")
}

type discard struct{}

func (discard) Print(...any)          {}
func (discard) Printf(string, ...any) {}
func (discard) Println(...any)        {}

func TestHeadersOfAnAnswerAreBounded(t *testing.T) {
	t.Parallel()
	c := against(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Entry", strings.Repeat("x", 1<<20))
	})
	_, err := c.Info(t.Context())
	testbed.Require(t, err != nil, "a MiB of headers was accepted")
}

// Lines of a header take far more memory than their bytes.
func TestLinesOfHeadersOfAnswersAreBounded(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(*client.Client) error{
		"Call": func(c *client.Client) error { _, err := c.Info(t.Context()); return err },
		"Live": func(c *client.Client) error { _, err := c.Live().Processes(t.Context()); return err },
		"Relay": func(c *client.Client) error {
			_, err := c.Relay(t.Context(), http.MethodGet, agent.ProcessesPath, nil, nil)
			return err
		}, //nolint:bodyclose // no answer
	} {
		c := against(t, func(w http.ResponseWriter, _ *http.Request) {
			for range 300 {
				w.Header().Add("A", "")
			}
			_, _ = io.WriteString(w, "[]")
		})
		err := ask(c)
		testbed.Check(t, errors.Is(err, httpserver.ErrHeaderLines), "%s: %v", name, err)
	}
}

// What an agent gives as the reason of an error is cut: it is logged, 64 KiB for each job.
func TestReasonsOfErrorsAreBounded(t *testing.T) {
	t.Parallel()
	const limit = 1 << 10
	for code, prefix := range map[farm.Code]string{farm.CodeConflict: "", farm.CodeUnavailable: "", "made_up": "agent: "} {
		for n, want := range map[int]string{
			limit - 1: strings.Repeat("x", limit-1), limit: strings.Repeat("x", limit), limit + 1: strings.Repeat("x", limit) + "…", 60 << 10: strings.Repeat("x", limit) + "…",
		} {
			err := client.ReadError(&http.Response{Body: io.NopCloser(strings.NewReader(`{"code":"` + string(code) + `","message":"` + strings.Repeat("x", n) + `"}`))})
			got, ok := errors.AsType[*farm.Error](err)
			testbed.Check(t, ok && got.Message == prefix+want, "%s: a reason of %d bytes has %d", code, n, len(got.Message))
		}
	}
}

// An agent answers a list with as many entries as it may have, with one more, and with very many that are empty: a few bytes that would take
// hundreds of MiB once they are decoded.
func TestListsAreBounded(t *testing.T) {
	t.Parallel()
	const (
		file    = `{"path":"a","size":1,"mode":"0644","modified_at":"2026-01-02T15:04:05Z","type":"file"}`
		fs      = `{"path":"/a","type":"file","size":1,"mode":"0644","uid":1,"gid":1,"modified_at":"2026-01-02T15:04:05Z","metadata":{"a":"1","b":"2","c":"3","d":"4"},"etag":"x"}`
		running = `{"pid":1,"parent":0,"owner":"kernel","command":"python","cpu_seconds":1,"memory_bytes":1,"started_at":"2026-01-02T15:04:05Z"}`
		port    = `{"number":80,"address":"::","pid":1,"command":"python"}`
		pack    = `{"name":"a","version":"1","manager":"pip"}`
		run     = `{"id":"job_a","done":true,"started":"2026-01-02T15:04:05Z","last_seq":1,"first_seq":1}`
		event   = `{"seq":%d,"kind":"renamed","path":"/a","from":"/b","type":"file","metadata":true}`
		limit   = 1000
	)
	process := `{"id":"` + farm.NewID(farm.ProcessPrefix) + `","pid":1,"name":"a","state":"running","argv":["a","b"],"terminal":{"cols":80,"rows":24},"stdin":true,"restart":"never","restarts":1,"started_at":"2026-01-02T15:04:05Z"}`
	for name, test := range map[string]struct {
		entry, around string // %s: the entries
		limit         int
		call          func(context.Context, *client.Client) (int, error)
	}{
		"List": {file, `{"entries":[%s],"after":""}`, limit, func(ctx context.Context, c *client.Client) (int, error) {
			found, err := c.List(ctx, "", agent.ListQuery{Limit: limit})
			return len(found.Entries), err
		}},
		"ListOfOne": {file, `{"entries":[%s],"after":""}`, 1, func(ctx context.Context, c *client.Client) (int, error) {
			found, err := c.List(ctx, "", agent.ListQuery{Limit: 1})
			return len(found.Entries), err
		}},
		"FSList": {fs, `{"entries":[%s]}`, limit, func(ctx context.Context, c *client.Client) (int, error) {
			found, err := c.Live().FSList(ctx, "/", 1, limit, "")
			return len(found.Entries), err
		}},
		"Running": {running, `[%s]`, farm.MaxRunning, func(ctx context.Context, c *client.Client) (int, error) {
			found, err := c.Live().Running(ctx)
			return len(found), err
		}},
		"Processes": {process, `[%s]`, 1000, func(ctx context.Context, c *client.Client) (int, error) {
			found, err := c.Live().Processes(ctx)
			return len(found), err
		}},
		"Ports": {port, `[%s]`, agent.MaxPorts, func(ctx context.Context, c *client.Client) (int, error) {
			found, err := c.Live().Ports(ctx)
			return len(found), err
		}},
		"Packages": {pack, `[%s]`, 20_000, func(ctx context.Context, c *client.Client) (int, error) {
			found, err := c.Packages(ctx)
			return len(found), err
		}},
		"Executions": {run, `[%s]`, 8192, func(ctx context.Context, c *client.Client) (int, error) {
			found, err := c.Executions(ctx)
			return len(found), err
		}},
		"Watched": {event, `{"events":[%s]}`, 1000, func(ctx context.Context, c *client.Client) (int, error) {
			found, err := c.Live().Watched(ctx, "w", 0, 0)
			return len(found.Events), err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer := func(n int, entry string) string {
				entries := make([]string, n)
				for i := range entries {
					entries[i] = strings.Replace(entry, "%d", strconv.Itoa(i+1), 1)
				}
				return strings.Replace(test.around, "%s", strings.Join(entries, ","), 1)
			}
			var text string
			c := against(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
			for _, n := range []int{test.limit - 1, test.limit, test.limit + 1} {
				text = answer(n, test.entry)
				got, err := test.call(t.Context(), c)
				testbed.Check(t, (err == nil) == (n <= test.limit) && (err != nil || got == n), "%d entries: %d, %v", n, got, err)
			}
			for _, empty := range []string{"{}", "null", "1"} {
				text = answer(500_000, empty)
				_, err := test.call(t.Context(), c)
				testbed.Check(t, farm.CodeOf(err) == farm.CodeTooLarge, "500 000 times %s: %v", empty, err) // before they are decoded
			}
		})
	}
}

// An answer to a list has no more bytes than a page of an agent: it is in memory several times until it is stored. Nor have its paths, as JSON has them.
func TestBytesOfListsAreBounded(t *testing.T) {
	t.Parallel()
	const limit, paths = 10_000, agent.PageBytes * 3 / 2
	text := ""
	c := against(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
	list := func() error { _, err := c.List(t.Context(), "", agent.ListQuery{Limit: limit}); return err }
	for name, test := range map[string]struct {
		most int
		call func() error
		of   func(n int) string
	}{
		"List":     {paths + limit*client.EntryBytes + 1<<20, list, func(n int) string { return `{"entries":[]` + strings.Repeat(" ", n-14) + `}` }},
		"Packages": {20_000 * 512, func() error { _, err := c.Packages(t.Context()); return err }, func(n int) string { return `[` + strings.Repeat(" ", n-2) + `]` }},
		"Paths": {paths, list, func(n int) string {
			const each = 3000 // a quotation mark takes two
			entries := make([]string, n/each)
			for i := range entries {
				more := 0
				if i == 0 {
					more = n % each
				}
				entries[i] = `{"path":"` + strings.Repeat(`\"/`, each/3-1) + strings.Repeat("a", 3+more%200) + strings.Repeat("/a", (more-more%200)/2) + `","size":0,"mode":"0644","type":"file"}`
			}
			return `{"entries":[` + strings.Join(entries, ",") + `]}`
		}},
	} {
		for n, good := range map[int]bool{test.most - 1: true, test.most: true, test.most + 1: false} {
			text = test.of(n)
			err := test.call()
			testbed.Check(t, (err == nil) == good && (good || farm.CodeOf(err) == farm.CodeTooLarge), "%s: %d bytes: %v", name, n, err)
		}
	}
}

// An agent lists what was asked for, or is not believed.
func TestListsHaveWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		dir   string
		depth int
		entry string
		good  bool
	}{
		{"/a", 0, "/a", true},
		{"/a", 0, "/b", false},
		{"/a", 0, "/a/b", false},
		{"/a", 1, "/a", true},
		{"/a", 1, "/a/b", true},
		{"/a", 1, "/ab", false},
		{"/a", 1, "/", false},
		{"/", 0, "/", true},
		{"/", 1, "/b", true},
		{"/", 0, "/b", false},
	} {
		agent := against(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"entries":[{"path":"`+c.entry+`","type":"file","mode":"0644","etag":"x"}]}`)
		})
		_, err := agent.Live().FSList(t.Context(), c.dir, c.depth, 10, "")
		testbed.Check(t, (err == nil) == c.good, "%+v: %v", c, err)
	}
}

// What an agent says of a file of the workspace is checked, as what it says of any file is.
func TestFilesOfTheWorkspaceAreChecked(t *testing.T) {
	t.Parallel()
	for name, entry := range map[string]string{
		"Good":     `{"path":"a/b","size":1,"mode":"0644","type":"file"}`,
		"Path":     `{"path":"../a","size":1,"mode":"0644","type":"file"}`,
		"Absolute": `{"path":"/etc/passwd","size":1,"mode":"0644","type":"file"}`,
		"Long":     `{"path":"` + strings.Repeat("a/", 3000) + `a","size":1,"mode":"0644","type":"file"}`,
		"Type":     `{"path":"a","size":1,"mode":"0644","type":"door"}`,
		"Mode":     `{"path":"a","size":1,"mode":"rw-r--r--","type":"file"}`,
		"Size":     `{"path":"a","size":-1,"mode":"0644","type":"file"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := against(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1/files" {
					_, _ = io.WriteString(w, `{"entries":[`+entry+`]}`)
				} else {
					_, _ = io.WriteString(w, entry)
				}
			})
			_, stat := c.Stat(t.Context(), "a")
			_, write := c.Write(t.Context(), "a", strings.NewReader("x"))
			_, listed := c.List(t.Context(), "", agent.ListQuery{Limit: 10})
			for call, err := range map[string]error{"Stat": stat, "Write": write, "List": listed} {
				testbed.Check(t, (err == nil) == (name == "Good"), "%s: %v", call, err)
			}
		})
	}
}

// An answer of a kernel is read up to its limit, whatever the agent sends.
func TestAnswersOfKernelsAreBounded(t *testing.T) {
	t.Parallel()
	var text string
	c := against(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text+"\n") })
	for n, code := range map[int]farm.Code{agent.MaxAnswerBytes - 1: "", agent.MaxAnswerBytes: "", agent.MaxAnswerBytes + 1: farm.CodeTooLarge, 40_000_000: farm.CodeTooLarge} {
		text = `"` + strings.Repeat("x", n-2) + `"`
		got, err := c.Live().Ask(t.Context(), "default", agent.NotebookQuestion{Kind: "inspect"})
		if code == "" && (err != nil || len(got) != n) || code != "" && farm.CodeOf(err) != code {
			t.Errorf("an answer of %d bytes: %d, %v", n, len(got), err)
		}
	}
}

// What a kernel's message says beside its content is as short as the agent makes it: callers keep it, and it is charged to nobody.
func TestMessagesOfKernelsAreBounded(t *testing.T) {
	t.Parallel()
	var message agent.Message
	c := against(t, func(w http.ResponseWriter, _ *http.Request) {
		text, _ := json.Marshal(message)
		_, _ = w.Write(agent.AppendFrame(nil, agent.Frame{Seq: 1, Type: agent.FrameMessage, Payload: text}))
	})
	kind, parent := strings.Repeat("k", agent.MaxKindBytes)+"…", strings.Repeat("p", agent.MaxParentBytes)+"…"
	job := farm.NewID(farm.JobPrefix)
	for name, c2 := range map[string]struct {
		message agent.Message
		ok      bool
	}{
		"Kind": {agent.Message{Kind: kind[1:]}, true}, "KindAtTheLimit": {agent.Message{Kind: kind}, true}, "KindBeyondIt": {agent.Message{Kind: "k" + kind}, false},
		"Parent": {agent.Message{Parent: parent[1:]}, true}, "ParentAtTheLimit": {agent.Message{Parent: parent}, true}, "ParentBeyondIt": {agent.Message{Parent: "p" + parent}, false},
		"Execution": {agent.Message{Execution: job}, true}, "NoExecution": {agent.Message{Execution: job + "x"}, false},
	} {
		message = c2.message
		message.Content = json.RawMessage("{}")
		list, err := c.Live().Messages(t.Context(), "default", 0, 0, func(int) error { return nil })
		testbed.Check(t, (err == nil) == c2.ok && (len(list) == 1) == c2.ok, "%s: %d messages, %v", name, len(list), err)
	}
}

// An agent may send anything on the stream, in place of yamux's control frames too: calls end, and so does the session.
func FuzzSession(f *testing.F) {
	window := []byte{0, 1, 0, 1, 0, 0, 0, 2, 0, 4, 0, 0}
	ping := []byte{0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7}
	goAway := []byte{0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}
	data := append([]byte{0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 4}, "HTTP"...)
	for _, seed := range [][]byte{nil, window, ping, goAway, data, append(append([]byte{}, window...), data...), {0, 0, 0, 1, 0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff}, {9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		local, remote := net.Pipe()
		c, err := client.New(local, client.Options{Egress: http.NotFoundHandler(), Proxy: len(in)%2 == 0})
		testbed.Must(t, err)
		defer func() { _ = c.Close() }()
		go func() { _, _ = io.Copy(io.Discard, remote) }()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		answered := make(chan error, 1)
		go func() {
			_, err := c.Info(ctx)
			answered <- err
		}()
		_ = remote.SetWriteDeadline(time.Now().Add(10 * time.Second))
		_, _ = remote.Write(in)
		_ = remote.Close()
		err = <-answered
		testbed.Check(t, err != nil, "garbage answered a call")
		select {
		case <-c.Done():
		case <-ctx.Done():
			t.Error("the session did not end")
		}
	})
}

// An agent may answer with anything. Frames are read in order or not at all, and a broken answer is an error.
func FuzzAnswer(f *testing.F) {
	frames := agent.AppendFrame(nil, agent.Frame{Seq: 1, Type: agent.FrameStdout, Payload: []byte("x")})
	frames = agent.AppendFrame(frames, agent.Frame{Seq: 2, Type: agent.FrameFinal, Payload: []byte(`{}`)})
	for _, seed := range []string{
		"", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n\r\n" + string(frames),
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "HTTP/1.1 404 Not Found\r\nContent-Length: 38\r\n\r\n{\"code\":\"not_found\",\"message\":\"gone\"}",
		"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 Switching Protocols\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		local, remote := net.Pipe()
		c, err := client.New(local, client.Options{})
		testbed.Must(t, err)
		config := yamux.DefaultConfig()
		config.LogOutput = nil
		config.Logger = discard{}
		session, err := yamux.Server(remote, config)
		testbed.Must(t, err)
		defer func() {
			_ = c.Close()
			_ = session.Close()
		}()
		go func() {
			for {
				stream, err := session.AcceptStream()
				if err != nil {
					return
				}
				go func() {
					_, _ = stream.Write(in)
					_ = stream.Close()
					_, _ = io.Copy(io.Discard, stream)
				}()
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		got, err := c.Frames(ctx, "job", 1)
		if err != nil {
			return
		}
		defer func() { _ = got.Close() }()
		for due := uint64(1); ; due++ {
			frame, err := got.NextAdmitted(func(bytes int) error {
				if bytes > 1<<16 {
					return io.ErrShortBuffer
				}
				return nil
			})
			if err != nil {
				testbed.Check(t, ctx.Err() == nil, "the answer did not end")
				return
			}
			testbed.Require(t, frame.Seq == due, "frame %d where %d was due", frame.Seq, due)
		}
	})
}
