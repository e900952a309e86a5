package mcp

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

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
	unlisted       int // artifacts that the answer does not list, see shorten
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
			artifacts: e.Artifacts, skipped: e.ArtifactsSkipped, restarted: e.KernelRestarted, installed: e.Installed, notes: asTools(e.Notes),
		}
	case r.Command != nil:
		out := &runOutcome{
			artifacts: r.Command.Artifacts, skipped: r.Command.ArtifactsSkipped, installed: r.Command.Installed, notes: asTools(r.Command.Notes),
		}
		for i, note := range out.notes { // execute_terminal_command has no auto_install
			out.notes[i] = strings.Replace(note, farm.OrAutoInstall, "", 1)
		}
		var stdout, stderr strings.Builder
		for _, c := range r.Command.Results { // the tool sends one command; jobs of other clients may have several
			stdout.WriteString(c.Stdout)
			stderr.WriteString(c.Stderr)
			out.exitCode = c.ExitCode
			out.truncated.Stdout = out.truncated.Stdout || c.Truncated.Stdout
			out.truncated.Stderr = out.truncated.Stderr || c.Truncated.Stderr
			out.dropped.Stdout += c.DroppedBytes.Stdout
			out.dropped.Stderr += c.DroppedBytes.Stderr
		}
		out.stdout, out.stderr = stdout.String(), stderr.String()
		return out
	default:
		return nil
	}
}

// Routes that are tools here: what installs packages, what makes a kernel use another version of a package, and what says how an install ended.
var (
	installRoute = regexp.MustCompile(farm.InstallRouteOf(`\w+`))
	restartRoute = regexp.MustCompile(`POST /v1/sandboxes/\w+/restart`)
	listRoute    = regexp.MustCompile(`GET /v1/sandboxes/\w+/packages lists what is installed`)
)

// asTool names what the tools can do, in a note of the farm or its message on a package: tools in place of routes and verbs. What no tool can do is left out.
func asTool(note string) string {
	note = strings.NewReplacer(
		farm.SendFile, "", farm.UploadWays, "(upload_file_to_sandbox)", farm.AskElsewhere, "", farm.MorePIDs, "",
		farm.AllowLater, " (create_sandbox)", farm.AllowMore, "Create a sandbox with other allow_hosts for another host.",
	).Replace(note)
	note = listRoute.ReplaceAllString(note, "check_package_status says whether it is installed")
	return restartRoute.ReplaceAllString(installRoute.ReplaceAllString(note, "install_packages_in_sandbox"), "restart_kernel")
}

func asTools(notes []string) []string {
	named := make([]string, len(notes))
	for i, note := range notes {
		named[i] = asTool(note)
	}
	return named
}

// jobAnswer describes a job that runs code or commands.
func (c *call) jobAnswer(j *wire.Job) (*answer, error) {
	structured := map[string]any{"job_id": j.ID, "sandbox_id": j.SandboxID, "state": j.State}
	if !j.Final() {
		return c.running(j, structured), nil
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
	c.shorten(out)
	c.tell(&b, j, out, pictures)
	structured["stdout"], structured["stderr"], structured["exit_code"] = out.stdout, out.stderr, out.exitCode
	structured["error"] = errorOf(out.err)
	structured["artifacts"] = artifactsOf(out.artifacts)
	if out.unlisted > 0 {
		structured["artifacts_unlisted"] = out.unlisted
	}
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
	return &answer{text: b.String(), blocks: append(pictures.blocks, links(out.artifacts)...), structured: structured}, nil
}

// shorten cuts the streams and the list of artifacts to what one answer takes: a model may read all of it. It keeps head and tail of a
// stream, and lists the artifacts that have whole streams first.
func (c *call) shorten(out *runOutcome) {
	var whole, files []wire.Artifact
	for _, a := range out.artifacts {
		if strings.HasPrefix(a.Path, farm.OutputDir) {
			whole = append(whole, a)
		} else {
			files = append(files, a)
		}
	}
	out.artifacts = append(whole, files...)
	cut := func(name string, s *string, truncated *bool) {
		if len(*s) <= c.Limits.TextBytes {
			return
		}
		advice, size := lessAdvice, int64(len(*s))
		if at := slices.IndexFunc(whole, func(a wire.Artifact) bool { return strings.HasSuffix(a.Path, name+".txt") }); at >= 0 {
			advice, size = "artifact "+whole[at].Path+" has the whole: read its resource link or url", whole[at].Size
		}
		*s, *truncated = headAndTail(*s, c.Limits.TextBytes, size, advice), true
	}
	cut("stdout", &out.stdout, &out.truncated.Stdout)
	cut("stderr", &out.stderr, &out.truncated.Stderr)
	out.unlisted = max(len(out.artifacts)-c.Limits.Links, 0)
	out.artifacts = out.artifacts[:len(out.artifacts)-out.unlisted]
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
	where, stop := "", ""
	switch {
	case j.Position > 0:
		where = fmt.Sprintf(" (position %d in the queue of its sandbox)", j.Position)
	case j.StartedAt != nil:
		where = fmt.Sprintf(" (for %.0f s", max(time.Since(*j.StartedAt), 0).Seconds())
		if j.Request != nil && j.Request.TimeoutSeconds > 0 {
			where += fmt.Sprintf(" of at most %d s", j.Request.TimeoutSeconds)
		}
		where += ")"
	}
	if kind := farm.JobKind(j.Kind); kind == farm.KindExecute || kind == farm.KindCommand {
		stop = "; cancel_job stops it"
	}
	return fmt.Sprintf("Job %s in sandbox %s is %s%s and continues.\nNext: get_job_result with this job_id and wait_seconds up to %g until its state is final%s. Do not start the work again.",
		j.ID, j.SandboxID, j.State, where, waitMax.Seconds(), stop)
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
	writeStream(b, "stdout", out.stdout)
	writeStream(b, "stderr", out.stderr)
	for i, v := range out.values {
		c.tellValue(b, resultName(i, len(out.values)), v, p.shown[v.Number()])
	}
	if out.err != nil {
		c.tellError(b, out.err)
	}
	for _, one := range out.installed {
		fmt.Fprintf(b, "package %s: %s", strings.TrimSpace(one.Name+" "+one.Version), one.Status)
		if one.Message != "" {
			fmt.Fprintf(b, ": %s", asTool(one.Message))
		}
		b.WriteByte('\n')
	}
	if out.restarted && (out.err == nil || !strings.Contains(out.err.Value, "variables are gone")) {
		b.WriteString("The kernel was restarted: variables and imports of earlier calls are gone, files are still there.\n")
	}
	for _, note := range append(p.notes, out.notes...) {
		fmt.Fprintf(b, "note: %s\n", note)
	}
	for _, a := range out.artifacts {
		kind, _, _ := strings.Cut(a.ContentType, ";")
		fmt.Fprintf(b, "file %s (%s, %d bytes)\n", a.Path, kind, a.Size)
	}
	if out.unlisted > 0 {
		fmt.Fprintf(b, "and %s: call list_files\n", farm.Plural(out.unlisted, "more file"))
	}
	if slices.ContainsFunc(out.artifacts, func(a wire.Artifact) bool { return !strings.HasPrefix(a.Path, farm.OutputDir) }) {
		b.WriteString("download_file gives a link to a file.\n")
	}
	if out.skipped > 0 {
		fmt.Fprintf(b, "note: %s not stored, but still in the workspace.\n", farm.Plural(out.skipped, "more file"))
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

// stream writes a text, without its middle if it is long.
func (c *call) stream(b *strings.Builder, name, s string) {
	writeStream(b, name, middleCut(s, c.Limits.TextBytes))
}

func writeStream(b *strings.Builder, name, s string) {
	if s == "" {
		return
	}
	fmt.Fprintf(b, "%s:\n%s", name, s)
	if !strings.HasSuffix(s, "\n") {
		b.WriteByte('\n')
	}
}

// middleCut keeps the head and the tail of a long text.
func middleCut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return headAndTail(s, limit, int64(len(s)), lessAdvice)
}

const lessAdvice = "print less, or write to a file and download it"

// headAndTail keeps the head and the tail of a text that has so many bytes as a whole, and says how to get the rest.
func headAndTail(s string, limit int, whole int64, advice string) string {
	head, tail := strings.ToValidUTF8(s[:limit/2], ""), strings.ToValidUTF8(s[len(s)-limit/2:], "")
	return fmt.Sprintf("%s\n[… %d bytes left out; %s …]\n%s", head, whole-int64(len(head)+len(tail)), advice, tail)
}
