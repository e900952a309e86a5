//go:build integration

package difftest_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
)

// reference is a real ipykernel, behind reference.py.
type reference struct {
	dir   string // has workspace, home, tmp, run
	input io.WriteCloser
	lines *bufio.Scanner
}

// referenceDir returns the folder that deploy/setup.sh makes for these tests.
func referenceDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("SANDFARM_TEST_REFERENCE")
	if _, err := os.Stat(filepath.Join(dir, "ipykernel", "ipykernel")); dir == "" || err != nil {
		t.Fatalf("SANDFARM_TEST_REFERENCE=%q does not have ipykernel: run the tests with make, or `deploy/setup.sh kernel` and then `export SANDFARM_TEST_REFERENCE=$(deploy/setup.sh reference-dir)`", dir)
	}
	return dir
}

// startReference starts ipykernel with the Python and the libraries of our kernel.
func startReference(t *testing.T) *reference {
	t.Helper()
	packages, path := referenceDir(t), agenttest.KernelPath(t)
	dir, err := os.MkdirTemp("", "reference") // short, because socket paths are limited in length
	agenttest.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, name := range []string{"workspace", "home", "tmp", "run"} {
		agenttest.Must(t, os.Mkdir(filepath.Join(dir, name), 0o755)) //nolint:gosec // as in a sandbox
	}
	script, err := filepath.Abs("reference.py")
	agenttest.Must(t, err)
	python := strings.SplitN(path, ":", 2)[0] + "/python3"
	cmd := exec.CommandContext(t.Context(), python, script, reset(dir), filepath.Join(dir, "workspace")) //nolint:gosec // of this package
	cmd.Dir, cmd.Stderr = filepath.Join(dir, "run"), os.Stderr
	home := filepath.Join(dir, "home")
	cmd.Env = []string{
		"PATH=" + path, "FARM=yes", "LANG=C.UTF-8", "HOME=" + home, "TMPDIR=" + filepath.Join(dir, "tmp"), "USER=user", "LOGNAME=user",
		"IPYTHONDIR=" + home + "/.ipython", "JUPYTER_CONFIG_DIR=" + home + "/.jupyter", "JUPYTER_DATA_DIR=" + home + "/jupyter",
		"JUPYTER_RUNTIME_DIR=" + filepath.Join(dir, "run"), "MPLCONFIGDIR=" + packages + "/matplotlib",
		"PYTHONPATH=" + packages + "/libraries:" + packages + "/ipykernel",
	}
	r := &reference{dir: dir}
	r.input, err = cmd.StdinPipe()
	agenttest.Must(t, err)
	output, err := cmd.StdoutPipe()
	agenttest.Must(t, err)
	r.lines = bufio.NewScanner(output)
	r.lines.Buffer(nil, 64<<20)
	agenttest.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = r.input.Close() // it then ends its kernel
		_ = cmd.Wait()
	})
	return r
}

// answer is what reference.py found out about a program.
type answer struct {
	Cells  []answerCell `json:"cells"`
	Failed string       `json:"failed"`
}

type answerCell struct {
	Messages []message `json:"messages"`
	TimedOut bool      `json:"timed_out"`
	Reply    *struct {
		Status  string   `json:"status"`
		Count   int      `json:"execution_count"`
		Name    string   `json:"ename"`
		Value   string   `json:"evalue"`
		Trace   []string `json:"traceback"`
		Payload []struct {
			Source string            `json:"source"`
			Text   string            `json:"text"`
			Data   map[string]string `json:"data"`
		} `json:"payload"`
	} `json:"reply"`
}

// message is one message of the Jupyter protocol that shows something.
type message struct {
	Type    string `json:"type"`
	Content struct {
		Name      string                     `json:"name"`
		Text      string                     `json:"text"`
		Wait      bool                       `json:"wait"`
		Error     string                     `json:"ename"`
		Value     string                     `json:"evalue"`
		Trace     []string                   `json:"traceback"`
		Data      map[string]json.RawMessage `json:"data"`
		Metadata  map[string]any             `json:"metadata"`
		Transient struct {
			ID string `json:"display_id"`
		} `json:"transient"`
	} `json:"content"`
}

// run runs a program.
func (r *reference) run(p program) ([]cell, error) {
	raw, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	if _, err := r.input.Write(append(raw, '\n')); err != nil {
		return nil, fmt.Errorf("write to reference.py: %w", err)
	}
	if !r.lines.Scan() {
		return nil, fmt.Errorf("reference.py ended: %w", r.lines.Err())
	}
	var a answer
	if err := json.Unmarshal(r.lines.Bytes(), &a); err != nil {
		return nil, err
	}
	if a.Failed != "" {
		return nil, fmt.Errorf("reference.py: %s", a.Failed)
	}
	var cells []cell
	for i, c := range a.Cells {
		if c.TimedOut {
			return nil, fmt.Errorf("cell %d took more than %d s", i+1, p.Seconds)
		}
		cells = append(cells, r.cell(c, p.Settle))
	}
	return cells, nil
}

func (r *reference) cell(a answerCell, settle bool) cell {
	c := cell{Status: "died"}
	numbers, count := map[string]int{}, 0
	for i, m := range a.Messages {
		switch content := m.Content; m.Type {
		case "stream":
			if content.Name == "stdout" {
				c.last().Stdout += content.Text
			} else {
				c.last().Stderr += content.Text
			}
		case "clear_output":
			c.show(shown{Clear: map[bool]string{true: "wait", false: "now"}[content.Wait]})
		case "error":
			if a.Reply != nil && a.Reply.Status == "error" && i == r.lastError(a.Messages) && slices.Equal(content.Trace, a.Reply.Trace) {
				continue // the error of the cell, which is in the reply
			}
			c.last().Stderr += normalTraceback(content.Trace, r.dir) + "\n"
		default:
			number, known := numbers[content.Transient.ID]
			if !known || m.Type != "update_display_data" {
				count++
				number = count
				if content.Transient.ID != "" {
					numbers[content.Transient.ID] = number
				}
			}
			c.show(shown{Number: number, Data: r.bundle(content.Data), Metadata: normalMetadata(content.Metadata)})
		}
	}
	if a.Reply != nil {
		c.Status, c.Count = a.Reply.Status, a.Reply.Count
		if c.Status != "ok" {
			c.Error = strings.TrimSpace(normal(a.Reply.Name+": "+a.Reply.Value, r.dir))
			c.Traceback = normalTraceback(a.Reply.Trace, r.dir)
		}
		for _, p := range a.Reply.Payload {
			switch p.Source {
			case "page": // Jupyter's clients show it in a pager of their own, ours has none
				c.last().Stdout += p.Data["text/plain"] + "\n"
			case "set_next_input":
				c.Next = normal(p.Text, r.dir)
			}
		}
	}
	c.finish(r.dir, settle)
	return c
}

// lastError returns the index of the last error.
func (r *reference) lastError(messages []message) int {
	for i := len(messages) - 1; i >= 0; i-- {
		if messages[i].Type == "error" {
			return i
		}
	}
	return -1
}

// bundle returns the representations of a value as the agent has them: text, or JSON.
func (r *reference) bundle(data map[string]json.RawMessage) map[string]string {
	bundle := map[string]string{}
	for mime, raw := range data {
		var text string
		if json.Unmarshal(raw, &text) != nil {
			text = string(raw)
		}
		bundle[mime] = normalValue(mime, text, r.dir)
	}
	return bundle
}
