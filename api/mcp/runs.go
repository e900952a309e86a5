package mcp

import (
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
)

// longer says what becomes of work that is longer than its call.
const longer = "Work longer than wait_seconds continues: get_job_result, or cancel_job, with the job_id of the answer."

func executePython() *tool {
	return &tool{
		name: "execute_python_code", title: "Run Python code",
		about: "Run Python in a kernel that keeps its variables, as in a notebook; the value of the last line is displayed. Gives stdout, stderr, the exception if there was one (a normal answer), plots as images, and new or changed files of /workspace as artifacts. " + longer + " Missing packages: install_packages_in_sandbox.",
		params: []param{
			sandboxParam(),
			{name: "code", kind: text, required: true, doc: "The code, up to 10 MiB."},
			timeoutParam(),
			waitParam(waitDefault, "the end"),
			{name: "context", kind: text, standard: "default", doc: "Kernel; each has its own variables."},
			{name: "auto_install", kind: flag, standard: false, doc: "First install what the code imports."},
			outputLimitParam(),
		},
		output: runSchema, hints: runs(), run: (*call).executePython,
	}
}

func (c *call) executePython() (*answer, error) {
	r := wire.ExecuteRequest{
		Code: c.text("code"), TimeoutSeconds: c.whole("timeout_seconds"), Context: c.optional("context"), AutoInstall: c.flag("auto_install"),
		OnOutputLimit: c.optional("on_output_limit"),
	}
	job, err := c.await(c.wait(waitDefault), func(wait time.Duration) (wire.Job, error) {
		return c.farm.Execute(c.ctx, c.text("sandbox_id"), r, wait)
	})
	if err != nil {
		return nil, err
	}
	return c.jobAnswer(&job)
}

// outputLimitParam says what happens at the limit of output.
func outputLimitParam() param {
	return param{
		name: "on_output_limit", kind: text, standard: "continue", enum: []string{"continue", "stop"},
		doc: "Over 100 MiB of output: continue drops the middle, stop ends the run.",
	}
}

func executeCommand() *tool {
	return &tool{
		name: "execute_terminal_command", title: "Run a shell command",
		about: "Run a shell command or script. Gives stdout, stderr, exit_code (other than 0 is a normal answer), and new or changed files of /workspace as artifacts. " + longer + " " + network + " For servers use start_process.",
		params: []param{
			sandboxParam(),
			{name: "command", kind: text, required: true, doc: "The command or script; pipes and && work."},
			{name: "cwd", kind: text, doc: "Working directory in /workspace."},
			timeoutParam(),
			waitParam(waitDefault, "the end"),
			outputLimitParam(),
		},
		output: commandSchema, hints: runs(), run: (*call).executeCommand,
	}
}

func (c *call) executeCommand() (*answer, error) {
	r := wire.CommandRequest{
		Command: c.optional("command"), Cwd: c.text("cwd"), TimeoutSeconds: c.whole("timeout_seconds"), OnOutputLimit: c.optional("on_output_limit"),
	}
	job, err := c.await(c.wait(waitDefault), func(wait time.Duration) (wire.Job, error) {
		return c.farm.Command(c.ctx, c.text("sandbox_id"), r, wait)
	})
	if err != nil {
		return nil, err
	}
	return c.jobAnswer(&job)
}
