package mcp

import (
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
)

func executePython() *tool {
	return &tool{
		name: "execute_python_code", title: "Run Python code",
		about: "Run Python code in a sandbox's kernel, as in a notebook: variables and imports stay for the next call, and the value of the last line is displayed. Gives stdout, stderr, the exception if there was one, " +
			"displayed plots as images, and every new or changed file of /workspace as an artifact with a link. Use it for computing, data and plots; use execute_terminal_command for shell commands and install_packages_in_sandbox for packages that are missing. " +
			"It waits up to 45 s; a longer run answers with a job_id: then call get_job_result, or cancel_job to stop it. Code that raises is a normal answer with error: read it, correct the code, call again.",
		params: []param{
			sandboxParam(),
			{name: "code", kind: text, required: true, doc: "The Python code, up to 10 MiB."},
			timeoutParam(),
			waitParam(waitDefault, "for the code to end"),
			{name: "context", kind: text, standard: "default", doc: "Name of the kernel; each has variables of its own and runs at the same time as the others."},
			{name: "auto_install", kind: flag, standard: false, doc: "Install packages that the code imports and that are missing, before it runs."},
			outputLimitParam("code"),
		},
		output: runSchema, hints: hints{destructive: true, openWorld: true}, run: (*call).executePython,
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

// outputLimitParam says what happens at the limit of output; what is code or a command.
func outputLimitParam(what string) param {
	return param{
		name: "on_output_limit", kind: text, standard: "continue", enum: []string{"continue", "stop"},
		doc: "When stdout or stderr exceeds the farm's limit (100 MiB): continue drops the middle of the output, stop ends the " + what + ".",
	}
}

func executeCommand() *tool {
	return &tool{
		name: "execute_terminal_command", title: "Run a shell command",
		about: "Run a shell command or script in a sandbox, in /workspace. Gives stdout, stderr and exit_code, and every new or changed file as an artifact with a link. Use it for programs, git, archives and files; use execute_python_code for Python that keeps its variables, " +
			"and install_packages_in_sandbox for packages. " + network + " It waits up to 45 s; a longer command answers with a job_id: then call get_job_result, or cancel_job to stop it. An exit code other than 0 is a normal answer.",
		params: []param{
			sandboxParam(),
			{name: "command", kind: text, required: true, doc: "The command or script, run by the sandbox's shell; pipes and && work."},
			{name: "cwd", kind: text, doc: "Working directory, relative to /workspace; the default is /workspace itself."},
			timeoutParam(),
			waitParam(waitDefault, "for the command to end"),
			outputLimitParam("command"),
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
