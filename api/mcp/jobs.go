package mcp

import (
	"fmt"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func jobParam() param {
	return param{name: "job_id", kind: text, required: true, doc: "Id of the job, job_…, from the answer that started it."}
}

func getJobResult() *tool {
	return &tool{
		name: "get_job_result", title: "Get the result of a job",
		about: "Look at a job that an earlier call started and get its result once it has ended: the same output, images and artifacts as the call itself would have returned. Call it whenever an answer has state queued or running, " +
			"or when a call was cut off: the job continues without its caller. With wait_seconds it waits for the end instead of looking once, which saves calls. Results are kept for 7 days unless the operator configured another time.",
		params: []param{jobParam(), waitParam(0, "for the job to end")},
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
		about: "Cancel a job: one that is queued never starts, one that is running is stopped. Use it for code that takes too long or that was a mistake, instead of closing the sandbox. Files that the job wrote stay in the workspace. " +
			"A job that has already ended keeps its result, and canceling it again is not an error: the answer has its state. Next: get_job_result for what it printed until then, or new work in the same sandbox.",
		params: []param{jobParam(), waitParam(stopWait, "for the job to stop")},
		output: stoppedSchema, hints: hints{destructive: true, idempotent: true}, run: (*call).cancelJob,
	}
}

func (c *call) cancelJob() (*answer, error) {
	id := c.text("job_id")
	job, refused := c.farm.Cancel(c.ctx, id)
	if refused != nil && farm.CodeOf(refused) != farm.CodeConflict {
		return nil, refused //nolint:wrapcheck // an error of the farm
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
		return nil, refused //nolint:wrapcheck // an error of the farm
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
		about: "Restart the Python kernels of a sandbox: variables and imports are gone, and code that runs in a kernel ends. Files and installed packages stay. Use it when a kernel is stuck, uses too much memory, or must import a package in another version. " +
			"It does not wait behind other work of the sandbox. Next: execute_python_code, which starts with an empty kernel.",
		params: []param{
			sandboxParam(),
			{name: "context", kind: text, doc: "Name of the kernel to restart, as given to execute_python_code; \"default\" is the one that code runs in without a name. Without it all kernels of the sandbox restart."},
			waitParam(restartWait, "for the restart to end"),
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
