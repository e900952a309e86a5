package farm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Result is what a job produced. The kind decides which fields are set: Execute for execute and run, Command for commands, File for files.
type Result struct {
	Execute *ExecuteResult `json:"execute,omitempty"`
	Command *CommandResult `json:"command,omitempty"`
	File    *FileResult    `json:"file,omitempty"`
	Install *InstallResult `json:"install,omitempty"` // install, and create with packages

	Packages []Package `json:"packages,omitempty"` // the installed packages, of a lookup

	Artifacts        []Artifact `json:"artifacts,omitempty"`
	ArtifactsSkipped int        `json:"artifacts_skipped,omitempty"` // files beyond the limits; they stay in the workspace
	Notes            []string   `json:"notes,omitempty"`             // what the caller should know, one sentence each
}

// ExecuteResult is the outcome of code.
type ExecuteResult struct {
	Stdout         string       `json:"stdout"`
	Stderr         string       `json:"stderr"`
	Truncated      Truncated    `json:"truncated"`
	Dropped        Dropped      `json:"dropped,omitzero"`
	ExitCode       int          `json:"exit_code"` // 0, 1 for an exception, N after exit(N), 128+signal for a kill
	Error          *CodeError   `json:"error,omitempty"`
	Rich           []RichResult `json:"rich,omitempty"`
	ExecutionCount int          `json:"execution_count"`
	Restarted      bool         `json:"restarted,omitempty"` // the kernel was restarted: variables are lost
	FreshProcess   bool         `json:"fresh_process,omitempty"`

	Installed []PackageOutcome `json:"installed,omitempty"` // packages that were installed for the code
}

// Truncated says which streams were cut to head and tail; an artifact has all of it except what was dropped.
type Truncated struct {
	Stdout bool `json:"stdout"`
	Stderr bool `json:"stderr"`
}

// Dropped says how many bytes of each stream exceeded Limits.MaxOutputMB and are kept nowhere.
type Dropped struct {
	Stdout int64 `json:"stdout,omitempty"`
	Stderr int64 `json:"stderr,omitempty"`
}

// MaxErrorValueBytes bounds the value of an error. Agents return answers in it (smolagents does), which are of use only when whole.
const MaxErrorValueBytes = 1 << 20

// CodeError is an error of the user's code. The traceback contains no ANSI codes.
type CodeError struct {
	Name      string   `json:"name"`
	Value     string   `json:"value"`
	Traceback []string `json:"traceback"`
}

// Names of errors of code that the farm or the kernel ended.
const (
	ErrorKernelDied  = "KernelDied"
	ErrorOutOfMemory = "OutOfMemory"
	ErrorOutputLimit = "OutputLimitExceeded" // see ExecuteRequest.StopAtOutputLimit
)

// longTraceback is the length of a traceback, in bytes, from which callers who read text do not get the frames of libraries.
const longTraceback = 2000

// libraryFrame is the head of a frame of a package, or of Python itself. Others are the caller's, wherever the file is.
var libraryFrame = regexp.MustCompile(`^File (?:<frozen |/usr/(?:local/)?lib/python3|[^\n:]*/(?:site-packages|dist-packages|\.packages)/)`)

// WithoutLibraries is a traceback of the kernel without the frames of libraries, if it is long, and how many these are. The errors of the whole chain
// stay, with the frames of the caller's code.
func WithoutLibraries(traceback []string) (short []string, left int) {
	if len(strings.Join(traceback, "")) < longTraceback {
		return traceback, 0
	}
	headless := false // the last part is the head of an error
	for _, part := range traceback {
		if libraryFrame.MatchString(part) {
			left++
			continue
		}
		if headless && !strings.HasPrefix(part, "File ") && !strings.HasPrefix(part, "Cell ") {
			short = short[:len(short)-1]
		}
		short = append(short, part)
		headless = strings.HasSuffix(part, "Traceback (most recent call last)")
	}
	return short, left
}

// What texts for callers of the API say that they can do. Where they do not name fields and routes, as at the command line, in Jupyter, in the
// SDKs, in the dashboard and in the tools for models, they read what they can do there in its place, or nothing.
const (
	MoreMemory    = "create a sandbox with more memory_mb"
	MorePIDs      = ", or create a sandbox with more pids"
	OrAutoInstall = ", or run with auto_install"
	SendFile      = "send a file of yours along (files of a run, --file of sandfarm run), or "
	UploadWays    = "(sandfarm cp, upload_file_to_sandbox of MCP, PUT …/files/)"
	AllowLater    = ", for a running sandbox by PATCH /v1/sandboxes/{id} or sandfarm sandbox allow"
	AllowMore     = "Change allow_hosts of the sandbox for another host; its egress log says what was denied."
	AskElsewhere  = " Environment variables (env) pass values, too. In a sandbox that stays open, sandfarm exec -i ID COMMAND passes on the input that it has itself, and a program that " +
		"must ask runs in a terminal (Terminal on its page of the dashboard, sandfarm ssh, sandfarm exec -it)" + OrAsProcess + "."
	OrAsProcess = ", or as a process with input (POST …/processes with stdin)"
)

// InstallRouteOf is the route that installs packages in a sandbox, as these texts name it.
func InstallRouteOf(sandbox string) string { return "POST /v1/sandboxes/" + sandbox + "/packages" }

// NotesWith are notes on a sandbox for callers who have its commands and files alone: install and upload are their words for pip install and the upload of
// a file. What they cannot do is left out.
func NotesWith(install, upload, sandbox string, notes []string) []string {
	words := strings.NewReplacer(
		InstallRouteOf(sandbox)+" with manager npm", strings.Replace(install, ManagerPip, ManagerNpm, 1), InstallRouteOf(sandbox), install, OrAutoInstall, "",
		MorePIDs, "", SendFile, "", UploadWays, "("+upload+")", AskElsewhere, "", AllowLater, "",
	)
	named := make([]string, len(notes))
	for i, note := range notes {
		named[i] = words.Replace(note)
	}
	return named
}

// RichResult is one MIME type of one displayed value. Text is plain, anything else base64. A value larger than
// MaxInlineRich is an artifact and has no Data.
type RichResult struct {
	Display  int       `json:"display"` // number of the displayed value, from 0; entries of one value share it
	Mime     string    `json:"mime"`
	Data     string    `json:"data,omitempty"`
	Artifact *Artifact `json:"artifact,omitempty"`

	DisplayID string          `json:"display_id,omitempty"` // the code's name of the value; empty: none
	Metadata  json.RawMessage `json:"metadata,omitempty"`   // of the value: a JSON object for those who show it; empty: none
	Result    bool            `json:"result,omitempty"`     // the value of the last expression of the code
	Update    bool            `json:"update,omitempty"`     // events only: it replaces what had this number
	More      bool            `json:"more,omitempty"`       // events only: the next event has another type of the same state of the value
}

// CommandResult is the outcome of the commands that ran.
type CommandResult struct {
	Commands []CommandOutcome `json:"commands"`

	Installed []PackageOutcome `json:"installed,omitempty"` // packages that were installed for the commands
}

// CommandOutcome is the outcome of one command.
type CommandOutcome struct {
	Command    string    `json:"command"`
	ExitCode   int       `json:"exit_code"`
	Stdout     string    `json:"stdout"`
	Stderr     string    `json:"stderr"`
	Truncated  Truncated `json:"truncated"`
	Dropped    Dropped   `json:"dropped,omitzero"`
	DurationMS float64   `json:"duration_ms"`
}

// MaxListedFiles bounds the entries of one page of a listing.
const MaxListedFiles = 50_000

// FileResult is the outcome of an operation on files.
type FileResult struct {
	Entries []FileEntry `json:"entries,omitempty"`
	More    bool        `json:"more,omitempty"`     // list: there are more entries after the last one
	TooLong int         `json:"too_long,omitempty"` // list: entries left out, with all below them, because their path is too long or not UTF-8
	Content []byte      `json:"content,omitempty"`  // read: the bytes, if they are few
	Staged  string      `json:"staged,omitempty"`   // read: otherwise the key of the staged object
	Size    int64       `json:"size,omitempty"`     // read: bytes of the whole file
	Offset  int64       `json:"offset,omitempty"`   // read: where the part begins
	Length  int64       `json:"length,omitempty"`   // read: bytes of the part
}

// FileEntry describes a file or directory of the workspace. Path is relative to the workspace.
type FileEntry struct {
	Path       string    `json:"path"`
	Size       int64     `json:"size"`
	Mode       string    `json:"mode"` // four octal digits, such as 0644
	ModifiedAt time.Time `json:"modified_at"`
	Type       string    `json:"type"` // file, dir, symlink or other
}

// OutputDir begins the paths of artifacts that are not files of the workspace: whole outputs and large displays.
const OutputDir = ".output/"

// ObjectBytes is what an artifact counts against max_stored_mb beside its size: MinIO keeps two folders and a file for it, however small it is, and ext4 has an
// inode for each 16 KiB of a disk. The farm keeps an entry in the manifest of its job.
const ObjectBytes = 48 << 10

// StoredBytes is what an artifact, an object of an upload or the copy of a file of this size counts against max_stored_mb, and an object of the package cache against index.cache_mb.
func StoredBytes(size int64) int64 { return size + ObjectBytes }

// Artifact is a file that a job made, kept in the object store. Its link is made when it is requested.
type Artifact struct {
	ID          string    `json:"id"`
	Tenant      string    `json:"tenant"`
	SandboxID   string    `json:"sandbox_id"`
	JobID       string    `json:"job_id"`
	Name        string    `json:"name"` // last element of Path
	Path        string    `json:"path"` // relative to the workspace
	Size        int64     `json:"size"`
	ContentType string    `json:"content_type"`
	SHA256      string    `json:"sha256"` // lower-case hex
	CreatedAt   time.Time `json:"created_at"`
	ExpiresAt   time.Time `json:"expires_at"`
	Key         string    `json:"key"` // in the object store
}

// JobOutcome says whether what a job ran was successful, which its state does not: code that raised is completed. Empty: the job has not
// ended, or was canceled.
type JobOutcome string

// The outcomes of a job.
const (
	// OutcomeOK: the job is completed, and so is what it ran: code without an exception, exit codes of 0, packages of a create
	// or an install that were installed. Code that runs without a package that it was to have is judged by itself.
	OutcomeOK JobOutcome = "ok"
	// OutcomeFailed: something of that is not so, or the job failed, timed out or was lost.
	OutcomeFailed JobOutcome = "failed"
)

// JobOutcomes lists them.
func JobOutcomes() []JobOutcome { return []JobOutcome{OutcomeOK, OutcomeFailed} }

// OutcomeOf is the outcome of a job in a state, with a result; nil: it has none.
func OutcomeOf(state JobState, r *Result) JobOutcome {
	switch state {
	case JobCompleted:
		if r.successful() {
			return OutcomeOK
		}
		return OutcomeFailed
	case JobFailed, JobTimedOut, JobLost:
		return OutcomeFailed
	default:
		return ""
	}
}

func (r *Result) successful() bool {
	if r == nil {
		return true
	}
	if e := r.Execute; e != nil && (e.ExitCode != 0 || e.Error != nil && e.Error.Name != "SystemExit") {
		return false
	}
	if r.Command != nil && slices.ContainsFunc(r.Command.Commands, func(c CommandOutcome) bool { return c.ExitCode != 0 }) {
		return false
	}
	return r.Install == nil || !slices.ContainsFunc(r.Install.Packages, func(p PackageOutcome) bool { return p.Status == PackageFailed })
}

// maxQuoted is how many bytes of a caller's text a message quotes.
const maxQuoted = 80

// Shorten cuts a caller's text to 80 bytes and marks the cut, so that it cannot fill a message.
func Shorten(s string) string { return ShortenTo(s, maxQuoted) }

// ShortenTo is Shorten to another number of bytes.
func ShortenTo(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Plural is a number with its noun, such as "2 files".
func Plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// Encode is json.Marshal without the escapes for HTML, which take six bytes each: output of code is full of < and &.
func Encode(v any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}

// Quoted is how many bytes a text takes in a JSON string, as records have it: a quotation mark, a backslash and the end of a line take two, other
// control characters and each byte that is not UTF-8 six. The quotation marks around it do not count.
func Quoted[T ~string | ~[]byte](text T) int {
	const more = 5 // of \u0001
	n := len(text)
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"', c == '\\', c == '\b', c == '\f', c == '\n', c == '\r', c == '\t':
			n++
		case c < ' ':
			n += more
		case c >= utf8.RuneSelf:
			r, size := utf8.DecodeRuneInString(string(text[i:min(i+utf8.UTFMax, len(text))]))
			switch {
			case r == utf8.RuneError && size == 1:
				n += more
			case r == '\u2028', r == '\u2029':
				n += more + 1 - size
			}
			i += size - 1
		}
	}
	return n
}
