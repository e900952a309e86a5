package mcp

import (
	"fmt"
	"strings"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// runOutcome is the outcome of code or of commands, in one form.
type runOutcome struct {
	stdout, stderr string
	truncated      wire.Truncated
	dropped        wire.DroppedBytes
	exitCode       int
	err            *wire.CodeError
	values         []wire.Value // that the code displayed
	artifacts      []wire.Artifact
	skipped        int
	restarted      bool
	installed      []wire.InstalledOne
	notes          []string
}

// outcomeOf reads a job's result. It is nil if the job has none.
func outcomeOf(j *wire.Job) *runOutcome {
	switch r := j.Result; {
	case r == nil:
		return nil
	case r.Execute != nil:
		e := r.Execute
		return &runOutcome{
			stdout: e.Stdout, stderr: e.Stderr, truncated: e.Truncated, dropped: e.DroppedBytes, exitCode: e.ExitCode, err: e.Error, values: wire.Values(e.Results),
			artifacts: e.Artifacts, skipped: e.ArtifactsSkipped, restarted: e.KernelRestarted, installed: e.Installed, notes: e.Notes,
		}
	case r.Command != nil:
		out := &runOutcome{
			artifacts: r.Command.Artifacts, skipped: r.Command.ArtifactsSkipped, installed: r.Command.Installed, notes: r.Command.Notes,
		}
		for _, c := range r.Command.Results { // the tool sends one command; jobs of other clients may have several
			out.stdout += c.Stdout
			out.stderr += c.Stderr
			out.exitCode = c.ExitCode
			out.truncated.Stdout = out.truncated.Stdout || c.Truncated.Stdout
			out.truncated.Stderr = out.truncated.Stderr || c.Truncated.Stderr
			out.dropped.Stdout += c.DroppedBytes.Stdout
			out.dropped.Stderr += c.DroppedBytes.Stderr
		}
		return out
	default:
		return nil
	}
}

// jobAnswer describes a job that runs code or commands.
func (c *call) jobAnswer(j *wire.Job) (*answer, error) {
	structured := map[string]any{"job_id": j.ID, "sandbox_id": j.SandboxID, "state": j.State}
	if !j.Final() {
		return &answer{text: unfinished(j), structured: structured}, nil
	}
	if j.State == string(farm.JobFailed) || j.State == string(farm.JobLost) {
		return nil, ended(j)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", headline(j))
	out := outcomeOf(j)
	if out == nil {
		out = &runOutcome{}
		if j.State != string(farm.JobCompleted) {
			structured["message"] = endOf(j)
			return &answer{text: b.String(), structured: structured}, nil
		}
	}
	pictures := c.pictures(out)
	c.tell(&b, j, out, pictures)
	structured["stdout"], structured["stderr"], structured["exit_code"] = out.stdout, out.stderr, out.exitCode
	structured["error"] = errorOf(out.err)
	structured["artifacts"] = artifactsOf(out.artifacts)
	structured["truncated"] = map[string]any{"stdout": out.truncated.Stdout, "stderr": out.truncated.Stderr}
	if out.dropped != (wire.DroppedBytes{}) {
		structured["dropped_bytes"] = map[string]any{"stdout": out.dropped.Stdout, "stderr": out.dropped.Stderr}
	}
	structured["kernel_restarted"] = out.restarted
	if message := strings.TrimSpace(endOf(j) + " " + strings.Join(out.notes, " ")); message != "" {
		structured["message"] = message
	}
	if len(out.installed) > 0 {
		structured["installed"] = outcomesOf(out.installed)
	}
	if j.Kind != string(farm.KindCommand) {
		structured["results"] = resultsOf(out.values, pictures.shown)
	}
	return &answer{text: b.String(), blocks: append(pictures.blocks, c.links(out.artifacts)...), structured: structured}, nil
}

// ended is the error for a job that failed or was lost.
func ended(j *wire.Job) error {
	if j.Error == nil {
		return jobFailed(j.ID, j.State, "", "")
	}
	return jobFailed(j.ID, j.State, j.Error.Code, j.Error.Message)
}

// unfinished describes a job that is not final.
func unfinished(j *wire.Job) string {
	where := ""
	if j.Position > 0 {
		where = fmt.Sprintf(" (position %d in the queue of its sandbox)", j.Position)
	}
	return fmt.Sprintf("Job %s in sandbox %s is %s%s and continues.\nNext: get_job_result with this job_id and wait_seconds up to %g until its state is final. Do not start the work again.",
		j.ID, j.SandboxID, j.State, where, waitMax.Seconds())
}

func headline(j *wire.Job) string {
	s := fmt.Sprintf("Job %s in sandbox %s: %s.", j.ID, j.SandboxID, j.State)
	if end := endOf(j); end != "" {
		s += " " + end
	}
	return s
}

// endOf says why a job did not complete.
func endOf(j *wire.Job) string {
	if j.Error == nil {
		return ""
	}
	return j.Error.Message
}

// tell writes the outcome into the text block.
func (c *call) tell(b *strings.Builder, j *wire.Job, out *runOutcome, p pictures) {
	if j.State == string(farm.JobCompleted) {
		fmt.Fprintf(b, "exit code: %d\n", out.exitCode)
	}
	c.stream(b, "stdout", out.stdout)
	c.stream(b, "stderr", out.stderr)
	for i, v := range out.values {
		c.tellValue(b, resultName(i, len(out.values)), v, p.shown[v.Number()])
	}
	if out.err != nil {
		c.tellError(b, out.err)
	}
	for _, one := range out.installed {
		fmt.Fprintf(b, "package %s %s: %s %s\n", one.Name, one.Version, one.Status, one.Message)
	}
	if out.restarted {
		b.WriteString("The kernel was restarted: variables and imports of earlier calls are gone, files are still there.\n")
	}
	for _, note := range append(p.notes, out.notes...) {
		fmt.Fprintf(b, "note: %s\n", note)
	}
	for i, a := range out.artifacts {
		if i == c.Limits.Links {
			fmt.Fprintf(b, "and %d more files: call list_files\n", len(out.artifacts)-i)
			break
		}
		kind, _, _ := strings.Cut(a.ContentType, ";")
		fmt.Fprintf(b, "file %s (%s, %d bytes)\n", a.Path, kind, a.Size)
	}
	if len(out.artifacts) > 0 {
		b.WriteString("download_file gives a link to a file.\n")
	}
	if out.skipped > 0 {
		fmt.Fprintf(b, "note: %d more files were not stored; they are still in the workspace.\n", out.skipped)
	}
}

// tellError writes an exception: its traceback, which ends with it as a rule, without the ruler at its head.
func (c *call) tellError(b *strings.Builder, e *wire.CodeError) {
	line := e.Name + ": " + e.Value
	if len(e.Traceback) == 0 || e.Traceback[len(e.Traceback)-1] != line {
		fmt.Fprintf(b, "error: %s\n", middleCut(line, c.Limits.TextBytes))
	}
	traceback := e.Traceback
	if len(traceback) > 0 && strings.Trim(traceback[0], "-") == "" {
		traceback = traceback[1:]
	}
	c.stream(b, "traceback", strings.Join(traceback, "\n"))
}

// resultName names a displayed value in the text: with its number if there are several.
func resultName(i, count int) string {
	if count == 1 {
		return "result"
	}
	return fmt.Sprintf("result %d", i+1)
}

// tellValue writes the texts of one displayed value, and which image block shows it (0: none). HTML is left out if the value
// has a plain text.
func (c *call) tellValue(b *strings.Builder, name string, v wire.Value, image int) {
	_, hasPlain := v.First("text/plain")
	for _, r := range v {
		if s, ok := r.Text(); ok && (r.Mime != "text/html" || !hasPlain) {
			c.stream(b, name+" ("+r.Mime+")", s)
		}
	}
	if image > 0 && name != "result" {
		fmt.Fprintf(b, "%s is image %d of this answer.\n", name, image)
	}
}

// stream writes one stream, without its middle if it is long.
func (c *call) stream(b *strings.Builder, name, s string) {
	if s == "" {
		return
	}
	fmt.Fprintf(b, "%s:\n%s", name, middleCut(s, c.Limits.TextBytes))
	if !strings.HasSuffix(s, "\n") {
		b.WriteByte('\n')
	}
}

// middleCut keeps the head and the tail of a long text.
func middleCut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	head, tail := strings.ToValidUTF8(s[:most/2], ""), strings.ToValidUTF8(s[len(s)-most/2:], "")
	return fmt.Sprintf("%s\n[… %d bytes left out; print less, or write to a file and download it …]\n%s", head, len(s)-len(head)-len(tail), tail)
}
