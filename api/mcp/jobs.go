package mcp

import (
	"fmt"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func jobParam() param {
	return param{name: "job_id", kind: text, required: true, doc: "From the answer that started it."}
}

func getJobResult() *tool {
	return &tool{
		name: "get_job_result", title: "Get the result of a job",
		about:  "Get the result of work that an earlier call started, as that call would have given it, or its output so far. Call it when an answer has state queued or running, or when a call was cut off: the work continues without its caller.",
		params: []param{jobParam(), waitParam(0, "the end")},
		output: jobSchema, hints: reads(), run: (*call).getJobResult,
	}
}

func (c *call) getJobResult() (*answer, error) {
	job, err := c.await(c.wait(0), func(wait time.Duration) (wire.Job, error) {
		return c.farm.Job(c.ctx, c.text("job_id"), wait)
	})
	if err != nil {
		return nil, err
	}
	var out *answer
	switch farm.JobKind(job.Kind) {
	case farm.KindInstall:
		out, err = c.installAnswer(&job, "", nil)
	case farm.KindCreate:
		out, err = createdAnswer(&job)
	default:
		out, err = c.jobAnswer(&job)
	}
	if err != nil {
		return nil, err
	}
	if list, _ := out.structured["artifacts"].([]map[string]any); len(list) > 0 {
		out.text += "If the sandbox is closed, use an artifact's url or resource link: download_file cannot read there.\n"
	}
	out.structured["kind"] = job.Kind
	return out, nil
}

// createdAnswer describes a job that creates a sandbox, with the outcome of each package that came with the create.
func createdAnswer(j *wire.Job) (*answer, error) {
	structured := map[string]any{"job_id": j.ID, "sandbox_id": j.SandboxID, "state": j.State}
	switch {
	case !j.Final():
		return &answer{text: unfinished(j), structured: structured}, nil
	case j.State == string(farm.JobFailed) || j.State == string(farm.JobLost):
		return nil, ended(j)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", headline(j))
	if end := endOf(j); end != "" {
		structured["message"] = end
	}
	if j.Result != nil && j.Result.Install != nil {
		structured["packages"] = outcomesOf(j.Result.Install.Packages)
		writePackages(&b, j.Result.Install.Packages)
	}
	if j.State == string(farm.JobCompleted) {
		fmt.Fprintf(&b, "Next: execute_python_code or execute_terminal_command with sandbox_id %q; close_sandbox when done.", j.SandboxID)
	}
	return &answer{text: b.String(), structured: structured}, nil
}

func cancelJob() *tool {
	return &tool{
		name: "cancel_job", title: "Cancel a job",
		about:  "Cancel a job that is queued or takes too long; files that it wrote stay. A job that has ended keeps its result. Next: get_job_result for what it printed, or new work.",
		params: []param{jobParam(), waitParam(stopWait, "the end")},
		output: stoppedSchema, hints: hints{destructive: true, idempotent: true}, run: (*call).cancelJob,
	}
}

func (c *call) cancelJob() (*answer, error) {
	id := c.text("job_id")
	job, refused := c.farm.Cancel(c.ctx, id)
	if refused != nil && farm.CodeOf(refused) != farm.CodeConflict {
		return nil, refused
	}
	if refused != nil || !job.Final() {
		var err error
		job, err = c.await(c.wait(stopWait), func(wait time.Duration) (wire.Job, error) { return c.farm.Job(c.ctx, id, wait) })
		if err != nil {
			return nil, err
		}
	}
	var text string
	switch {
	case refused != nil && !job.Final(): // a kind of job that cannot be canceled
		return nil, refused
	case !job.Final():
		text = fmt.Sprintf("Job %s is being stopped. Next: call get_job_result with job_id %q and wait_seconds to see its end.", job.ID, job.ID)
	case job.State != string(farm.JobCanceled):
		text = fmt.Sprintf("Job %s has ended already: %s. Next: get_job_result gives its result.", job.ID, job.State)
	default:
		text = fmt.Sprintf("Job %s in sandbox %s: %s. Files that it wrote are still there.", job.ID, job.SandboxID, job.State)
	}
	return &answer{text: text, structured: stoppedOf(&job)}, nil
}

// stoppedOf is the structured content of the tools that stop something.
func stoppedOf(j *wire.Job) map[string]any {
	return map[string]any{"job_id": j.ID, "sandbox_id": j.SandboxID, "kind": j.Kind, "state": j.State}
}

func restartKernel() *tool {
	return &tool{
		name: "restart_kernel", title: "Restart a kernel",
		about: "Restart Python kernels, such as one that is stuck, full, or must import another version of a package. Variables are gone; files and packages stay. It does not wait behind other work. Next: execute_python_code.",
		params: []param{
			sandboxParam(),
			{name: "context", kind: text, doc: "Kernel to restart, such as default; without it all."},
			waitParam(restartWait, "the end"),
		},
		output: stoppedSchema, hints: hints{destructive: true, idempotent: true}, run: (*call).restartKernel,
	}
}

func (c *call) restartKernel() (*answer, error) {
	job, err := c.await(c.wait(restartWait), func(wait time.Duration) (wire.Job, error) {
		return c.farm.Restart(c.ctx, c.text("sandbox_id"), c.text("context"), wait)
	})
	switch {
	case err != nil:
		return nil, err
	case !job.Final():
		return &answer{text: unfinished(&job), structured: stoppedOf(&job)}, nil
	case job.State != string(farm.JobCompleted):
		return nil, ended(&job)
	}
	text := fmt.Sprintf("The kernels of sandbox %s were restarted", job.SandboxID)
	if name := c.text("context"); name != "" {
		text = fmt.Sprintf("The kernel %q of sandbox %s was restarted", name, job.SandboxID)
	}
	return &answer{text: text + ": variables are gone, files and packages are still there. Next: execute_python_code.", structured: stoppedOf(&job)}, nil
}

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
	if r := job.Result; r != nil && r.Execute != nil && r.Execute.Error != nil {
		traceback, left := farm.WithoutLibraries(r.Execute.Error.Traceback)
		if left > 0 {
			r.Execute.Error.Traceback = traceback
			r.Execute.Notes = append(r.Execute.Notes, fmt.Sprintf("The traceback lacks %s of libraries, which get_job_result with this job_id has.", farm.Plural(left, "frame")))
		}
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
