//go:build integration

package difftest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/server"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// reset returns what is run before each program: every name is gone, the count of executions begins anew, and the kernel is in its own workspace, since
// a program may leave it, and in a folder of both kernels they would write the same files at the same time. It collects garbage, which takes long if
// all libraries take part.
func reset(dir string) string {
	return fmt.Sprintf("import gc, os; gc.freeze(); os.chdir(%q); get_ipython().reset(new_session=True)", filepath.Join(dir, "workspace"))
}

// kernel is our kernel, behind the agent.
type kernel struct {
	*agenttest.Agent
	dir string // has workspace, home, tmp, run
}

// startOurs starts the agent, with the libraries that ipykernel has as well. It does not have ipykernel.
func startOurs(t *testing.T) *kernel {
	t.Helper()
	packages := referenceDir(t)
	k := &kernel{}
	k.Agent = agenttest.Start(t, agenttest.KernelPath(t), func(c *server.Config) {
		k.dir = filepath.Dir(c.Workspace)
		c.Env = append(c.Env, "PYTHONPATH="+packages+"/libraries")
		agenttest.Must(t, os.Mkdir(filepath.Join(c.HomeDir, ".config"), 0o755)) //nolint:gosec // as in a sandbox
		agenttest.Must(t, os.Symlink(packages+"/matplotlib", filepath.Join(c.HomeDir, ".config", "matplotlib")))
	})
	return k
}

// run runs a program.
func (k *kernel) run(ctx context.Context, p program) ([]cell, error) {
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

func (k *kernel) cell(ctx context.Context, code string, p program) (cell, error) {
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
func (k *kernel) add(c *cell, f agent.Frame) error {
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
func (k *kernel) end(c *cell, out agent.Outcome) {
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
