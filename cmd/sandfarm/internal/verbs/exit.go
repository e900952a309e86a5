package verbs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/client"
)

// Exit codes of the program, beside those of the code that it runs.
const (
	ExitOK          = 0
	ExitError       = 1
	ExitUsage       = 2
	ExitTimeout     = 124 // as timeout(1) has it
	ExitInterrupted = 130
)

// CodeError ends the program with the exit code of the code that it ran. Nothing is printed.
type CodeError struct{ Code int }

// Error returns the exit code.
func (e *CodeError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// timeoutError says that a job was ended after its timeout.
type timeoutError struct{ err error }

func (e *timeoutError) Error() string { return e.err.Error() }
func (e *timeoutError) Unwrap() error { return e.err }

// UsageError is a mistake on the command line.
type UsageError struct {
	Err     error
	Command string // the command whose help to read
}

// Error returns the mistake and the help to read.
func (e *UsageError) Error() string {
	text := e.Err.Error()
	if !strings.HasSuffix(text, "?") {
		text = strings.TrimSuffix(text, ".") + "."
	}
	return fmt.Sprintf("%s See %q", text, e.Command+" --help")
}

// Unwrap returns the mistake.
func (e *UsageError) Unwrap() error { return e.Err }

// hint is an error with a sentence that says what to do.
type hint struct {
	err  error
	text string
}

func (h *hint) Error() string { return h.text }
func (h *hint) Unwrap() error { return h.err }

// Execute runs a command below root, prints its error, if any, and returns the exit code of the program. With --json the error is one JSON object.
func Execute(ctx context.Context, root *cobra.Command, stderr io.Writer) int {
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = unknownCommand(cmd, cmd.Flags().Args()) // whose help was asked for
	}
	return exit(ctx, root, err, stderr)
}

// exit prints the error of a command below root, if any, and returns the exit code.
func exit(ctx context.Context, root *cobra.Command, err error, stderr io.Writer) int {
	if err == nil {
		return ExitOK
	}
	if e, ok := errors.AsType[*CodeError](err); ok {
		return e.Code
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		tell(root, stderr, "interrupted", "interrupted")
		return ExitInterrupted
	}
	if brokenPipe(err) { // the reader of the output has exited: sandfarm … | head
		return ExitError
	}
	found := problems(err)
	sentences := make([]string, len(found))
	for i, one := range found {
		sentences[i] = sentence(one)
	}
	tell(root, stderr, codeOf(found[0]), sentences...)
	if _, ok := errors.AsType[*UsageError](err); ok {
		return ExitUsage
	}
	if _, ok := errors.AsType[*timeoutError](err); ok {
		return ExitTimeout
	}
	return ExitError
}

// problem is the error of a command as JSON.
type problem struct {
	Code    string `json:"code"` // that of the farm, or usage, interrupted or error
	Message string `json:"message"`
}

// tell prints what went wrong.
func tell(root *cobra.Command, stderr io.Writer, code string, sentences ...string) {
	if asked, err := root.PersistentFlags().GetBool("json"); err == nil && asked {
		e := json.NewEncoder(escaping{stderr})
		e.SetEscapeHTML(false)
		_ = e.Encode(problem{Code: code, Message: strings.Join(sentences, " ")})
		return
	}
	for _, one := range sentences {
		fmt.Fprintln(stderr, "sandfarm: "+printable(one))
	}
}

// codeOf is the code of an error.
func codeOf(err error) string {
	if _, ok := errors.AsType[*UsageError](err); ok {
		return "usage"
	}
	return cmp.Or(client.CodeOf(err), "error")
}

// subject is an error with a prefix that sentence keeps.
type subject struct {
	what string
	err  error
}

func (s *subject) Error() string { return s.what + ": " + s.err.Error() }
func (s *subject) Unwrap() error { return s.err }

// about names what an error is about, for a verb that does several things.
func about(what string, err error) error {
	if err == nil {
		return nil
	}
	return &subject{what: what, err: err}
}

// unreadable says why a file of this machine that the user names cannot be read.
func unreadable(name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no file %s here", name)
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	return fmt.Errorf("read %s: %w", name, err)
}

// problems returns the errors that were joined.
func problems(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error }) //nolint:errorlint // only the outermost error is a list
	if !ok {
		return []error{err}
	}
	var all []error
	for _, one := range joined.Unwrap() {
		all = append(all, problems(one)...)
	}
	return all
}

// brokenPipe reports whether an error comes from a pipe whose reader has closed it.
func brokenPipe(err error) bool {
	const windowsBrokenPipe, windowsNoData = syscall.Errno(109), syscall.Errno(232)
	return errors.Is(err, syscall.EPIPE) || runtime.GOOS == "windows" && (errors.Is(err, windowsBrokenPipe) || errors.Is(err, windowsNoData))
}

// kernelName is the name of an error of the kernel before the farm's words for it.
var kernelName = regexp.MustCompile(`^E[A-Z0-9]+: `)

// quotasOfSandboxes are the quotas whose room is not free again in seconds.
var quotasOfSandboxes = []string{"max_sandboxes", "max_memory_mb", "max_cpus", "max_gpus"}

// sayRetry says why a verb waits, if the pause before the next try is long enough to notice; that the farm does not answer it says once.
func (a *app) sayRetry(err error, pause time.Duration) {
	if pause < time.Second {
		return
	}
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Status >= http.StatusInternalServerError {
		reason := ""
		if ok {
			reason = e.Error()
		}
		if _, said := a.unanswered.LoadOrStore(reason, true); said {
			return
		}
	}
	if !ok {
		fmt.Fprintln(a.Err, "sandfarm: the farm does not answer; waiting for it, for up to a minute")
		return
	}
	text := asFlags(strings.TrimSuffix(cmp.Or(e.Detail, e.Title), "."))
	if e.Quota != nil {
		text = "the quota " + e.Quota.Name + " of your tenant is used up"
	}
	fmt.Fprintf(a.Err, "sandfarm: %s; trying again in %s\n", printable(text), span(pause))
}

// sentence says what went wrong and what to do next.
func sentence(err error) string {
	if e, ok := errors.AsType[*subject](err); ok {
		return e.what + ": " + sentence(e.err)
	}
	if e, ok := errors.AsType[*hint](err); ok {
		return e.text
	}
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		return err.Error()
	}
	text := asFlags(kernelName.ReplaceAllString(strings.TrimSuffix(cmp.Or(e.Detail, e.Title), "."), ""))
	switch e.Code {
	case "unauthorized":
		if e.Status == http.StatusForbidden { // the sentence says what is missing
			return text + "."
		}
		text, _, _ = strings.Cut(text, ": send Authorization") // headers are not the caller's concern here
		return text + ". Give a key of this farm with --key or SANDFARM_API_KEY."
	case "exhausted", "unavailable":
		switch {
		case e.Quota != nil && e.RetryAfter == 0: // no retry can succeed
			return text + "."
		case e.Quota != nil && slices.Contains(quotasOfSandboxes, e.Quota.Name):
			return text + ". Your sandboxes: sandfarm sandbox ls."
		}
		if e.RetryAfter > 0 {
			return fmt.Sprintf("%s. Try again in %s.", text, e.RetryAfter)
		}
		return text + ". Try again later."
	case "internal":
		if e.RequestID != "" {
			return fmt.Sprintf("%s. Look for the request id %s in the log of the farm.", text, e.RequestID)
		}
	}
	return text + "."
}

// Sentence says what went wrong with a request to the farm at url, and what to do next.
func Sentence(err error, url string) string { return sentence(unreachable(err, url)) }

// unreachable explains a failed connection to the farm at url; other errors stay as they are.
func unreachable(err error, url string) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	if _, explained := errors.AsType[*hint](err); explained {
		return err
	}
	if e, answered := errors.AsType[*client.Error](err); answered {
		if e.Status != 0 && e.Detail == "" && e.RequestID == "" { // a farm sends both
			return &hint{err: err, text: fmt.Sprintf("%s answers HTTP %d (%s), unlike a Sandfarm. Check the address: --url or SANDFARM_URL.", url, e.Status, e.Title)}
		}
		return err
	}
	if strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") { // net/http has no value for it
		return &hint{err: err, text: fmt.Sprintf("%s answers without TLS: write http:// in --url or SANDFARM_URL.", url)}
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		return &hint{err: err, text: fmt.Sprintf("no farm answers at %s: %s. Check the address: --url or SANDFARM_URL.", url, e.Err)}
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "dial" { // by Op: the numbers of errors differ on Windows
		return &hint{err: err, text: fmt.Sprintf("no farm answers at %s: start one with `make run` (or `sandfarm up`), or set SANDFARM_URL.", url)}
	}
	return err
}
