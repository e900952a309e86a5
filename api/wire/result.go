package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Result is what a job produced: exactly one field is set, by the kind of the job. In JSON only that field's content
// is there, without its name.
type Result struct {
	Execute *ExecuteResult
	Command *CommandResult
	File    *FileResult
	Install *InstallResult
	Note    *NoteResult // jobs that produce nothing else
}

// ExecuteResult is the outcome of code.
type ExecuteResult struct {
	Stdout           string         `json:"stdout" doc:"standard output; over 1 MiB only head and tail"`
	Stderr           string         `json:"stderr" doc:"standard error; over 1 MiB only head and tail"`
	ExitCode         int            `json:"exit_code" doc:"0; 1 for an exception; N after exit(N); 128+signal for a kill"`
	Error            *CodeError     `json:"error" doc:"the exception that ended the code; null: none"`
	Results          []Rich         `json:"results" doc:"displayed values that the code has not cleared, in their last state: one entry for each MIME type of each value, grouped by display"`
	Artifacts        []Artifact     `json:"artifacts" doc:"every file of the workspace that is new or changed; none in folders named .cache, .git, .venv, __pycache__, node_modules or venv, which notes count"`
	ArtifactsSkipped int            `json:"artifacts_skipped" doc:"files over the caps, which stay in the workspace"`
	ExecutionCount   int            `json:"execution_count" doc:"counter of the kernel"`
	Truncated        Truncated      `json:"truncated" doc:"which streams were cut; the whole is an artifact then"`
	DroppedBytes     DroppedBytes   `json:"dropped_bytes" doc:"bytes of each stream beyond limits.max_output_mb; they were dropped from its middle and are kept nowhere"`
	KernelRestarted  bool           `json:"kernel_restarted" doc:"the kernel is new: earlier variables are lost"`
	FreshProcess     bool           `json:"fresh_process" doc:"the code ran in a process of its own, because the image has no kernel for the language"`
	Installed        []InstalledOne `json:"installed" doc:"packages that were installed for the code"`
	Notes            []string       `json:"notes" doc:"what the caller should know, a sentence each"`
}

// Truncated says which streams were cut to head and tail.
type Truncated struct {
	Stdout bool `json:"stdout" doc:"stdout was cut"`
	Stderr bool `json:"stderr" doc:"stderr was cut"`
}

// DroppedBytes says how many bytes of each stream were beyond limits.max_output_mb.
type DroppedBytes struct {
	Stdout int64 `json:"stdout" doc:"bytes of stdout that were dropped"`
	Stderr int64 `json:"stderr" doc:"bytes of stderr that were dropped"`
}

// CodeError is an error of the caller's code.
type CodeError struct {
	Name      string   `json:"name" doc:"class of the exception; KernelDied or OutOfMemory when the kernel ended; OutputLimitExceeded when on_output_limit stopped the code"`
	Value     string   `json:"value" doc:"text of the exception"`
	Traceback []string `json:"traceback" doc:"lines of the traceback, without colours"`
}

// Rich is one MIME type of one displayed value: text as it is, anything else base64, or behind a link when it is large.
type Rich struct {
	Display    int    `json:"display" doc:"number of the displayed value, from 0: entries of one value share it. A value that was updated in place keeps its number; results hold its last state"`
	Mime       string `json:"mime" doc:"MIME type"`
	Data       string `json:"data,omitempty" doc:"the value: text as it is, anything else base64"`
	ArtifactID string `json:"artifact_id,omitempty" doc:"the artifact that holds a large value"`
	URL        string `json:"url,omitempty" doc:"link to a large value"`

	DisplayID string          `json:"display_id,omitempty" doc:"the name that the code gave the value; at most 256 bytes"`
	Result    bool            `json:"result,omitempty" doc:"the value of the last expression of the code, and not one that the code displayed"`
	Metadata  json.RawMessage `json:"metadata,omitempty" doc:"an object: how to show the value, such as its size; all entries of a value have the same"`
}

// CommandResult is the outcome of commands, as far as they ran.
type CommandResult struct {
	Results          []CommandOutcome `json:"results" doc:"one entry for each command that ran"`
	Artifacts        []Artifact       `json:"artifacts" doc:"every file of the workspace that is new or changed; none in folders named .cache, .git, .venv, __pycache__, node_modules or venv, which notes count"`
	ArtifactsSkipped int              `json:"artifacts_skipped" doc:"files over the caps, which stay in the workspace"`
	Installed        []InstalledOne   `json:"installed" doc:"packages that were installed for the commands"`
	Notes            []string         `json:"notes" doc:"what the caller should know, a sentence each"`
}

// CommandOutcome is the outcome of one command.
type CommandOutcome struct {
	Command      string       `json:"command" doc:"the command"`
	ExitCode     int          `json:"exit_code" doc:"its exit code; 128+signal for a kill"`
	Stdout       string       `json:"stdout" doc:"its standard output; over 1 MiB only head and tail"`
	Stderr       string       `json:"stderr" doc:"its standard error; over 1 MiB only head and tail"`
	Truncated    Truncated    `json:"truncated" doc:"which streams were cut; the whole is an artifact then"`
	DroppedBytes DroppedBytes `json:"dropped_bytes" doc:"bytes of each stream beyond limits.max_output_mb; they were dropped from its middle and are kept nowhere"`
	DurationMS   float64      `json:"duration_ms" doc:"duration in milliseconds"`
}

// FileResult is the outcome of an operation on files.
type FileResult struct {
	Entries []FileEntry `json:"entries" doc:"the files and directories it touched or found"`
	Notes   []string    `json:"notes" doc:"what the caller should know, a sentence each"`
}

// InstallResult is the outcome of an install.
type InstallResult struct {
	Packages     []InstalledOne `json:"packages" doc:"one entry for each requested package"`
	Stdout       string         `json:"stdout" doc:"what the installer printed"`
	Stderr       string         `json:"stderr" doc:"what the installer wrote to standard error"`
	Truncated    Truncated      `json:"truncated" doc:"which streams were cut; the whole is an artifact then"`
	DroppedBytes DroppedBytes   `json:"dropped_bytes" doc:"bytes of each stream beyond limits.max_output_mb; they were dropped from its middle and are kept nowhere"`
	Artifacts    []Artifact     `json:"artifacts" doc:"the whole of each truncated stream"`
	Notes        []string       `json:"notes" doc:"what the caller should know, a sentence each"`
}

// InstalledOne is the outcome for one package.
type InstalledOne struct {
	Name      string `json:"name" doc:"name of the package"`
	Requested string `json:"requested" doc:"the requirement"`
	Version   string `json:"version" doc:"the installed version"`
	Status    string `json:"status" doc:"outcome" enum:"installed,failed"`
	Message   string `json:"message" doc:"why it failed, or what to know about it"`
	Why       string `json:"why,omitempty" doc:"of an automatic install: what required it"`
}

// Package is the status of one package of a sandbox.
type Package struct {
	Name    string `json:"name" doc:"name of the package, normalised by PEP 503"`
	Status  string `json:"status" doc:"status of the package" enum:"installing,installed,failed,not_found"`
	Version string `json:"version,omitempty" doc:"the installed version"`
	JobID   string `json:"job_id,omitempty" doc:"the job that installs it, or the last one that did"`
	Message string `json:"message,omitempty" doc:"why it failed, or what to do next"`
	Manager string `json:"manager,omitempty" doc:"what installed it" enum:"pip,npm"`
}

// NoteResult is the result of a job that produces only notes.
type NoteResult struct {
	Notes []string `json:"notes" doc:"what the caller should know, a sentence each"`
}

// MarshalJSON writes the content of the field that is set, and {} when none is.
func (r Result) MarshalJSON() ([]byte, error) {
	switch {
	case r.Execute != nil:
		return encode(r.Execute)
	case r.Command != nil:
		return encode(r.Command)
	case r.File != nil:
		return encode(r.File)
	case r.Install != nil:
		return encode(r.Install)
	case r.Note != nil:
		return encode(r.Note)
	default:
		return []byte("{}"), nil
	}
}

// UnmarshalJSON finds the kind by a field that only this kind has.
func (r *Result) UnmarshalJSON(data []byte) error {
	*r = Result{}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(data, &keys); err != nil {
		return fmt.Errorf("decode result: %w", err)
	}
	if keys == nil {
		return nil
	}
	has := func(key string) bool { _, ok := keys[key]; return ok }
	var into any
	switch {
	case has("packages"):
		r.Install = new(InstallResult)
		into = r.Install
	case has("exit_code"):
		r.Execute = new(ExecuteResult)
		into = r.Execute
	case has("results"):
		r.Command = new(CommandResult)
		into = r.Command
	case has("entries"):
		r.File = new(FileResult)
		into = r.File
	default:
		r.Note = new(NoteResult)
		into = r.Note
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("decode result: %w", err)
	}
	return nil
}

// encode is json.Marshal without the escapes for HTML, which take six bytes each: output of code is full of < and &.
func encode(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), nil
}
