//go:build integration

package kernel_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/server"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// The programs of testdata/difftest do in our kernel what they do in ipykernel, except for what is listed.
func TestKernelBehavesLikeIPykernel(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(filepath.Join("testdata", "difftest", "*.ipy"))
	testbed.Must(t, err)
	listed, err := differences(pythonMinor(t))
	testbed.Must(t, err)
	ours, theirs := startOurs(t), startReference(t)
	for _, path := range paths {
		for _, p := range readPrograms(t, path) {
			t.Run(p.Name, func(t *testing.T) { // one at a time: there is one kernel of each kind
				type result struct {
					cells []cell
					err   error
				}
				got := make(chan result, 1)
				go func() {
					cells, err := theirs.run(p)
					got <- result{cells, err}
				}()
				mine, err := ours.run(t.Context(), p)
				their := <-got
				testbed.Must(t, err)
				testbed.Must(t, their.err)
				for _, wrong := range verdicts(listed[p.Name], compare(mine, their.cells)) {
					t.Error(wrong)
				}
			})
		}
	}
}

// pythonMinor returns the minor version of the Python that both kernels run with. Where the image's Python cannot be had, it is an older one.
func pythonMinor(t *testing.T) int {
	t.Helper()
	python := filepath.Join(strings.SplitN(agenttest.KernelPath(t), ":", 2)[0], "python3")
	out, err := exec.CommandContext(t.Context(), python, "-c", "import sys; print(sys.version_info.minor)").Output() //nolint:gosec // of the tests
	testbed.Must(t, err)
	minor, err := strconv.Atoi(strings.TrimSpace(string(out)))
	testbed.Must(t, err)
	return minor
}

// reset returns what is run before each program: every name is gone, the count of executions begins anew, and the kernel is in its own workspace, since
// a program may leave it, and in a folder of both kernels they would write the same files at the same time. It collects garbage, which takes long if
// all libraries take part.
func reset(dir string) string {
	return fmt.Sprintf("import gc, os; gc.freeze(); os.chdir(%q); get_ipython().reset(new_session=True)", filepath.Join(dir, "workspace"))
}

// ours is our kernel, behind the agent.
type ours struct {
	*agenttest.Agent
	dir string // has workspace, home, tmp, run
}

// startOurs starts the agent, with the libraries that ipykernel has as well. It does not have ipykernel.
func startOurs(t *testing.T) *ours {
	t.Helper()
	packages := referenceDir(t)
	k := &ours{}
	k.Agent = agenttest.Start(t, agenttest.KernelPath(t), func(c *server.Config) {
		k.dir = filepath.Dir(c.Workspace)
		c.Env = append(c.Env, "PYTHONPATH="+packages+"/libraries")
		testbed.Must(t, os.Mkdir(filepath.Join(c.HomeDir, ".config"), 0o755)) //nolint:gosec // as in a sandbox
		testbed.Must(t, os.Symlink(packages+"/matplotlib", filepath.Join(c.HomeDir, ".config", "matplotlib")))
	})
	return k
}

// run runs a program.
func (k *ours) run(ctx context.Context, p program) ([]cell, error) {
	c, err := k.cell(ctx, reset(k.dir), program{Seconds: p.Seconds})
	if err != nil {
		return nil, fmt.Errorf("reset: %w", err)
	}
	if c.Status != "ok" {
		return nil, fmt.Errorf("reset: %s: the program before needs the option restart", c.Error)
	}
	var cells []cell
	for i, code := range p.Cells {
		c, err := k.cell(ctx, code, p)
		if err != nil {
			return nil, fmt.Errorf("cell %d: %w", i+1, err)
		}
		if cells = append(cells, c); c.Status == "died" {
			break
		}
	}
	if p.Restart {
		return cells, k.RestartKernel(ctx, "")
	}
	return cells, nil
}

// display is a displayed value as the agent reports it.
type display struct {
	Number   int               `json:"number"`
	Data     map[string]string `json:"data"`
	Metadata map[string]any    `json:"metadata"`
	Clear    string            `json:"clear"`
}

func (k *ours) cell(ctx context.Context, code string, p program) (cell, error) {
	id := agenttest.NewID()
	spec := agenttest.Code(code)
	spec.Timeout = time.Duration(p.Seconds) * time.Second
	if err := k.Start(ctx, id, spec); err != nil {
		return cell{}, err
	}
	frames, err := k.Frames(ctx, id, 1)
	if err != nil {
		return cell{}, err
	}
	defer func() { _ = frames.Close() }()
	var c cell
	for {
		f, err := frames.Next()
		if errors.Is(err, io.EOF) {
			c.finish(k.dir, p.Settle)
			return c, k.Forget(ctx, id)
		}
		if err == nil {
			err = k.add(&c, f)
		}
		if err != nil {
			return cell{}, err
		}
	}
}

// add adds a frame of the agent's log.
func (k *ours) add(c *cell, f agent.Frame) error {
	switch f.Type {
	case agent.FrameStdout:
		c.last().Stdout += string(f.Payload)
	case agent.FrameStderr:
		c.last().Stderr += string(f.Payload)
	case agent.FrameDisplay:
		var d display
		if err := json.Unmarshal(f.Payload, &d); err != nil {
			return err
		}
		if d.Clear != "" {
			c.show(shown{Clear: d.Clear})
			return nil
		}
		for mime, value := range d.Data {
			d.Data[mime] = normalValue(mime, value, k.dir)
		}
		c.show(shown{Number: d.Number, Data: d.Data, Metadata: normalMetadata(d.Metadata)})
	case agent.FrameFinal:
		var out agent.Outcome
		if err := json.Unmarshal(f.Payload, &out); err != nil {
			return err
		}
		if out.TimedOut {
			return errors.New("it took too long")
		}
		k.end(c, out)
	default:
		return fmt.Errorf("unexpected frame of type %d", f.Type)
	}
	return nil
}

// end adds the outcome.
func (k *ours) end(c *cell, out agent.Outcome) {
	c.Status, c.Count = "ok", out.ExecutionCount
	switch e := out.Error; {
	case e != nil && e.Name == farm.ErrorKernelDied:
		c.Status = "died"
	case e != nil:
		c.Status = "error"
		c.Error = normal(e.Name+": "+e.Value, k.dir)
		c.Traceback = normalTraceback(e.Traceback, k.dir)
	case out.ExitCode != 0:
		c.Status = fmt.Sprintf("exit %d", out.ExitCode)
	}
	c.Error = strings.TrimSpace(c.Error)
}

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
	testbed.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, name := range []string{"workspace", "home", "tmp", "run"} {
		testbed.Must(t, os.Mkdir(filepath.Join(dir, name), 0o755)) //nolint:gosec // as in a sandbox
	}
	script, err := filepath.Abs(filepath.Join("testdata", "difftest", "reference.py"))
	testbed.Must(t, err)
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
	testbed.Must(t, err)
	output, err := cmd.StdoutPipe()
	testbed.Must(t, err)
	r.lines = bufio.NewScanner(output)
	r.lines.Buffer(nil, 64<<20)
	testbed.Must(t, cmd.Start())
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
