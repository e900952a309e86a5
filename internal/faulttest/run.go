package faulttest

import (
	"fmt"
	"strings"

	"github.com/sandfarm/sandfarm/api/wire"
)

// Run is code to run, and how the job must end. The zero value is Python code that does nothing.
type Run struct {
	Lines      int      // lines that it prints, one each 0.1 s
	Code       string   // what it does after them
	Out        string   // what Code prints
	Want       []string // states that it may end in; none: completed, with its whole output, once
	Never      bool     // it must not start at all
	Alone      bool     // in a sandbox of its own (POST /v1/run) instead of the given one
	First      bool     // it is the only job of its sandbox, which is closed before the books are read
	Files      int      // small files that it leaves in its workspace, each of which must be stored
	Held       bool     // after its lines it goes on until Case.Release
	Command    bool     // it is a shell command; Code is shell code
	Background bool     // it is a command that later jobs of its sandbox do not wait for
	Loud       int      // MiB that it prints after its lines; its result has head and tail, and an artifact the whole
}

// command reports whether it is a shell command.
func (r Run) command() bool { return r.Command || r.Background }

// ended follows the token in the line that a job writes at its end.
const ended = "/ended"

// released is the file that ends a held job's wait.
func (j *Job) released() string { return "/tmp/released-" + j.token }

// code is what the job runs. It writes a line when it begins and one when it has ended, and the same to stderr. A job whose sandbox is gone
// later prints how often it has begun there.
func (j *Job) code() string {
	if j.run.command() {
		return j.shell()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "import sys, time\nopen(%q, 'a').write(%q)\nprint('began', file=sys.stderr)\n", effects, j.token+"\n")
	if j.apart() {
		fmt.Fprintf(&b, "print('begun', len(open(%q).readlines()))\n", effects)
	}
	fmt.Fprintf(&b, "for n in range(%d):\n    print(n, flush=True)\n    time.sleep(0.1)\n", j.run.Lines)
	fmt.Fprintf(&b, "for n in range(%d):\n    open(f'%s-{n}.txt', 'w').write(str(n))\n", j.run.Files, j.token)
	if j.run.Held {
		fmt.Fprintf(&b, "import os\nwhile not os.path.exists(%q):\n    time.sleep(0.1)\n", j.released())
	}
	if j.run.Loud > 0 {
		fmt.Fprintf(&b, "for n in range(%d):\n    print('x' * 1023)\n", j.run.Loud<<10)
	}
	fmt.Fprintf(&b, "%s\nprint('ended', file=sys.stderr)\nopen(%q, 'a').write(%q)\n", j.run.Code, effects, j.token+ended+"\n")
	return b.String()
}

// shell is code of a command.
func (j *Job) shell() string {
	var b strings.Builder
	fmt.Fprintf(&b, "echo %s >> %s\necho began >&2\n", j.token, effects)
	for n := range j.run.Lines {
		fmt.Fprintf(&b, "echo %d\nsleep 0.1\n", n)
	}
	for n := range j.run.Files {
		fmt.Fprintf(&b, "echo %d > %s-%d.txt\n", n, j.token, n)
	}
	fmt.Fprintf(&b, "%s\necho ended >&2\necho %s >> %s\n", j.run.Code, j.token+ended, effects)
	return b.String()
}

// output is the complete output of the job, but for what a loud one prints.
func (j *Job) output() string {
	var b strings.Builder
	if j.bare {
		return ""
	}
	if j.apart() {
		b.WriteString("begun 1\n")
	}
	for n := range j.run.Lines {
		fmt.Fprintln(&b, n)
	}
	return b.String() + j.run.Out
}

// errors is what the job writes to stderr.
func (j *Job) errors() string {
	if j.bare {
		return ""
	}
	return "began\nended\n"
}

// told is what a caller is told of a job that has ended.
type reported struct {
	stdout, stderr string
	failed         string // "" if its code did not fail
	artifacts      []wire.Artifact
}

// told is the job's result; nil if it has none.
func (j *Job) reported() *reported {
	switch r := j.end.Result; {
	case r == nil:
		return nil
	case r.Execute != nil:
		t := &reported{stdout: r.Execute.Stdout, stderr: r.Execute.Stderr, artifacts: r.Execute.Artifacts}
		if r.Execute.Error != nil {
			t.failed = fmt.Sprintf("%+v", *r.Execute.Error)
		}
		return t
	case r.Command != nil && len(r.Command.Results) == 1:
		one := r.Command.Results[0]
		t := &reported{stdout: one.Stdout, stderr: one.Stderr, artifacts: r.Command.Artifacts}
		if one.ExitCode != 0 {
			t.failed = fmt.Sprintf("exit code %d", one.ExitCode)
		}
		return t
	default:
		return nil
	}
}

// loud says what is wrong with the artifact that has the whole output of a loud job; "" for nothing.
func (j *Job) loud(t *reported) string {
	want := int64(len(j.output()) + j.run.Loud<<20)
	for _, a := range t.artifacts {
		if strings.HasSuffix(a.Path, "stdout.txt") {
			if a.Size != want {
				return fmt.Sprintf("it printed %d bytes, and the artifact of its output has %d", want, a.Size)
			}
			return ""
		}
	}
	return fmt.Sprintf("no artifact has its output, but %+v", t.artifacts)
}
