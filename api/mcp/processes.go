package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func processParam() param {
	return param{name: "process_id", kind: text, required: true, doc: "From start_process."}
}

func startProcess() *tool {
	return &tool{
		name: "start_process", title: "Start a process",
		about: "Start a program that keeps running, such as a web server, and get its process_id at once. It runs beside code and commands until stop_process or the end of the sandbox, and gets no input. Servers listen on 127.0.0.1 or 0.0.0.0. Next: read_process to see whether it started well, get_port_url for a link.",
		params: []param{
			sandboxParam(),
			{name: "command", kind: text, required: true, doc: "The command, such as python3 -m http.server 8000, without &."},
			{name: "cwd", kind: text, doc: "Working directory in /workspace."},
			{name: "name", kind: text, doc: "Name for people."},
			{name: "timeout_seconds", kind: whole, doc: "Seconds that it may run."},
		},
		output: processSchema, hints: runs(), run: (*call).startProcess,
	}
}

func (c *call) startProcess() (*answer, error) {
	p, err := c.farm.StartProcess(c.ctx, c.text("sandbox_id"), wire.ProcessRequest{
		Command: c.optional("command"), Cwd: c.text("cwd"), Name: c.text("name"), TimeoutSeconds: c.whole("timeout_seconds"),
	})
	if err != nil {
		return nil, err
	}
	return &answer{
		text:       fmt.Sprintf("Process %s is running.\nNext: read_process with process_id %q shows what it prints; stop_process ends it.", p.ID, p.ID),
		structured: processOf(c.text("sandbox_id"), &p),
	}, nil
}

func processOf(sandbox string, p *wire.Process) map[string]any {
	out := map[string]any{"sandbox_id": sandbox, "process_id": p.ID, "state": p.State}
	if p.ExitCode != nil {
		out["exit_code"] = *p.ExitCode
	}
	return out
}

func readProcess() *tool {
	return &tool{
		name: "read_process", title: "Read the output of a process",
		about: "Read what a process printed, stdout and stderr together, and whether it runs. It starts with the oldest that is kept (the newest MiB), or after the cursor of the last answer. One answer has about 32 KiB; when more is true, call again at once. Next: again with the cursor, or stop_process.",
		params: []param{
			sandboxParam(), processParam(),
			{name: "cursor", kind: text, doc: "From the last answer."},
			waitParam(readWait, "output or the end"),
		},
		output: outputSchema, hints: reads(), run: (*call).readProcess,
	}
}

func (c *call) readProcess() (*answer, error) {
	box, id := c.text("sandbox_id"), c.text("process_id")
	got, err := c.collect(box, id, c.text("cursor"), c.wait(readWait))
	if err != nil {
		return nil, err
	}
	printed := strings.ToValidUTF8(string(got.bytes), "�")
	structured := map[string]any{
		"sandbox_id": box, "process_id": id, "state": "running", "output": printed, "cursor": got.cursor, "more": got.more, "dropped": got.dropped,
	}
	var b strings.Builder
	if got.exit != nil {
		structured["state"], structured["exit_code"] = "exited", got.exit.ExitCode
		fmt.Fprintf(&b, "Process %s has ended: exit code %d%s.\n", id, got.exit.ExitCode, reasonOf(got.exit))
	} else {
		fmt.Fprintf(&b, "Process %s is running.\n", id)
	}
	if got.dropped {
		b.WriteString("Some output before this is not kept any more.\n")
	}
	if printed != "" {
		fmt.Fprintf(&b, "output:\n%s\n", printed)
	} else {
		b.WriteString("It has printed nothing new.\n")
	}
	switch {
	case got.more:
		fmt.Fprintf(&b, "Next: there is more; call read_process with cursor %q.", got.cursor)
	case got.exit == nil && got.cursor == "":
		b.WriteString("Next: read_process again.")
	case got.exit == nil:
		fmt.Fprintf(&b, "Next: read_process with cursor %q has what comes after this.", got.cursor)
	}
	return &answer{text: b.String(), structured: structured}, nil
}

func reasonOf(e *wire.ExitData) string {
	switch {
	case e.OutOfMemory:
		return " (out of memory)"
	case e.TimedOut:
		return " (its time was up)"
	case e.Stopped:
		return " (it was stopped)"
	default:
		return ""
	}
}

// output is a part of what a process printed.
type output struct {
	bytes   []byte
	cursor  string // the id of its last event
	more    bool   // the answer is full, and there may be more
	dropped bool   // some output was not kept
	exit    *wire.ExitData
}

// collect reads the output after a cursor. It waits for the first of it, and then until no more comes for a moment.
func (c *call) collect(sandbox, process, cursor string, wait time.Duration) (*output, error) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	begun := time.Now()
	timer := time.AfterFunc(max(wait, readQuiet), cancel)
	defer timer.Stop()
	got := &output{cursor: cursor}
	for event, err := range c.farm.ProcessEvents(ctx, sandbox, process, cursor) {
		switch {
		case err != nil && ctx.Err() != nil && c.ctx.Err() == nil:
			return got, nil // the time is up
		case err != nil:
			return nil, err
		}
		got.cursor = event.ID
		if err := got.add(event); err != nil {
			return nil, err
		}
		if got.exit != nil {
			return got, nil
		}
		if len(got.bytes) >= c.Limits.TextBytes {
			got.more = true
			return got, nil
		}
		if left := max(wait, readQuiet) - time.Since(begun); left > 0 {
			timer.Reset(min(left, readQuiet))
		}
	}
	if c.ctx.Err() != nil {
		return nil, c.ctx.Err()
	}
	return got, nil
}

func (o *output) add(event wire.Event) error {
	var err error
	switch event.Name {
	case string(farm.OutputStdout), string(farm.OutputStderr):
		var data wire.OutputData
		if err = json.Unmarshal(event.Data, &data); err == nil {
			if data.Text != nil {
				data.Base64 = []byte(*data.Text)
			}
			o.bytes = append(o.bytes, data.Base64...)
		}
	case string(farm.OutputDropped):
		o.dropped = true
	case string(farm.OutputExit):
		o.exit = &wire.ExitData{}
		err = json.Unmarshal(event.Data, o.exit)
	}
	if err != nil {
		return fmt.Errorf("read event %s of a process: %w", event.ID, err)
	}
	return nil
}

func stopProcess() *tool {
	return &tool{
		name: "stop_process", title: "Stop a process",
		about:  "End a process and all that it started: SIGTERM, and SIGKILL after five seconds. Its output is forgotten: call read_process before if you need it.",
		params: []param{sandboxParam(), processParam()},
		output: processSchema, hints: hints{destructive: true}, run: (*call).stopProcess,
	}
}

func (c *call) stopProcess() (*answer, error) {
	p, err := c.farm.EndProcess(c.ctx, c.text("sandbox_id"), c.text("process_id"))
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("Process %s has ended", p.ID)
	if p.ExitCode != nil {
		text += fmt.Sprintf(": exit code %d", *p.ExitCode)
	}
	return &answer{text: text + ".", structured: processOf(c.text("sandbox_id"), &p)}, nil
}

func getPortURL() *tool {
	return &tool{
		name: "get_port_url", title: "Get a link to a port",
		about: "Get a link to a port of the sandbox, such as that of a web app of start_process. It works in any browser without a key until it expires: give it to the user. Inside the sandbox use http://127.0.0.1:PORT.",
		params: []param{
			sandboxParam(),
			{name: "port", kind: whole, required: true, low: 1, top: 65535, doc: "The port that the server listens on."},
			{name: "expires_seconds", kind: whole, low: 1, top: farm.MaxLinkSeconds, standard: farm.LinkSeconds, doc: "Seconds that the link works."},
			{name: "path_style", kind: flag, standard: false, doc: "Link by path, for programs that cannot resolve *.localhost."},
		},
		output: portSchema, hints: runs(), run: (*call).getPortURL,
	}
}

func (c *call) getPortURL() (*answer, error) {
	link, err := c.farm.LinkPort(c.ctx, c.text("sandbox_id"), wire.PortLinkRequest{
		Port: *c.whole("port"), ExpiresSeconds: c.whole("expires_seconds"), PathStyle: c.flag("path_style"),
	})
	switch {
	case err != nil:
		return nil, err
	case link.URL == "":
		return nil, errors.New("the farm made a link without an address")
	}
	text := fmt.Sprintf("Port %d of sandbox %s: %s\nThe link works until %s, while a server listens on that port; start_process starts one.", link.Port, c.text("sandbox_id"), link.URL, stamp(link.ExpiresAt))
	if at, err := url.Parse(link.URL); err == nil && strings.HasSuffix(at.Hostname(), ".localhost") {
		text += "\nBrowsers resolve its host. A program that cannot needs the link that path_style gives."
	}
	return &answer{
		text:       text,
		structured: map[string]any{"sandbox_id": c.text("sandbox_id"), "port": link.Port, "url": link.URL, "expires_at": stamp(link.ExpiresAt)},
	}, nil
}
