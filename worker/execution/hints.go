package execution

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/sandfarm/sandfarm/internal/farm"
)

var (
	// missingInCode matches the value of a ModuleNotFoundError. A part of a package that is there is not meant: an index does not have it.
	missingInCode = regexp.MustCompile(`^No module named '([A-Za-z]\w*)'$`)
	// missingInCommand matches the last line of a program that lacks a module, and what python -m prints.
	missingInCommand = regexp.MustCompile(`(?:^|\n)(?:ModuleNotFoundError: |\S*python[0-9.]*: )No module named '?([A-Za-z]\w*)'?\s*$`)
	// missingInNode matches what Node prints for a package that is not installed. A path is a file of the caller's.
	missingInNode = regexp.MustCompile(`Cannot find (?:module|package) '((?:@[a-z0-9][\w.-]*/)?[a-z0-9][\w.-]*)'`)
	// missingProgram matches what shells print for a program that is not there.
	missingProgram = regexp.MustCompile(`(?:^|\n)\S*sh: (?:line )?(?:\d+: )?([\w.+-]+): (?:command )?not found\s*$`)
)

const (
	// notFound is the exit code of a shell that has not found a program.
	notFound = 127
	// otherPrograms says where programs come from that the image lacks.
	otherPrograms = "Packages of pip and npm can be installed. Other programs need another image, which the operator of the farm adds (docs/images.md)."
)

// hints are notes on what the sandbox lacked, and how there is more of it. allowlist says whether the farm has that network.
func hints(r *farm.Result, request *farm.Request, s *farm.SandboxSpec, allowlist bool) []string {
	all := []string{networkNote(r, s, allowlist), programNote(r), moduleNote(r, request, s), inputNote(r, request), diskNote(r, s), processesNote(r, s), rootNote(r)}
	return slices.DeleteFunc(all, func(note string) bool { return note == "" })
}

// moduleNote says how a module is installed for lack of which code or the last command has failed; "" if it has not. A cell of a notebook gets none:
// its clients show notes as output. Nor does auto_install, which says itself what it could not install.
func moduleNote(r *farm.Result, request *farm.Request, s *farm.SandboxSpec) string {
	module := missingModule(r, request)
	if module == "" {
		return ""
	}
	if s.Network == farm.NetworkNone {
		return fmt.Sprintf(`The module %s is not installed, and a sandbox with network "none" reaches no package index. Another one with network "packages" does.`, module)
	}
	if dist := farm.DistributionOf(module); dist != module {
		return fmt.Sprintf("The module %s is in the package %s: install it (packages), or run with auto_install.", module, dist)
	}
	return fmt.Sprintf("The module %s is not installed: install the package that provides it, most often of the same name (packages), or run with auto_install.", module)
}

// missingModule is the module that was not found; "" if none was missing, or if the result is not to say how it is installed.
func missingModule(r *farm.Result, request *farm.Request) string {
	var found []string
	switch {
	case r.Execute != nil && request.Execute != nil:
		e := r.Execute.Error
		if e == nil || e.Name != "ModuleNotFoundError" || request.Execute.AutoInstall || request.Execute.Cell != nil {
			return ""
		}
		found = missingInCode.FindStringSubmatch(e.Value)
	case r.Command != nil && request.Command != nil:
		n := len(r.Command.Commands)
		if n == 0 || r.Command.Commands[n-1].ExitCode == 0 || request.Command.AutoInstall {
			return ""
		}
		found = missingInCommand.FindStringSubmatch(r.Command.Commands[n-1].Stderr)
	}
	if found == nil {
		return ""
	}
	return found[1]
}

// programNote says where a program comes from that the last command did not find, or a module of Node; "" if none was missing.
func programNote(r *farm.Result) string {
	if r.Command == nil || len(r.Command.Commands) == 0 {
		return ""
	}
	last := r.Command.Commands[len(r.Command.Commands)-1]
	if found := missingInNode.FindStringSubmatch(last.Stderr); found != nil && last.ExitCode != 0 {
		return fmt.Sprintf("The package %s is not installed: install it (packages, manager npm).", found[1])
	}
	found := missingProgram.FindStringSubmatch(last.Stderr)
	if found == nil || last.ExitCode != notFound || needsRoot.MatchString(last.Stderr) {
		return ""
	}
	if name := found[1]; name == "node" || name == "npm" || name == "npx" {
		return fmt.Sprintf("This image has no %s: create a sandbox with the image node.", name)
	}
	return fmt.Sprintf("This image has no program %s. ", found[1]) + otherPrograms
}

// What programs print that are short of something, by whatever language they are written in.
var (
	diskFull    = regexp.MustCompile(`No space left on device|ENOSPC`)
	tooMany     = regexp.MustCompile(`can't start new thread|fork: (?:retry: )?Resource temporarily unavailable|Cannot fork|pthread_create failed`)
	forkRefused = regexp.MustCompile(`in (?:fork|_fork_exec|_execute_child|popen)\b|\bfork\(`) // in the traceback of an error that has other causes, too
	needsRoot   = regexp.MustCompile(`(?:^|[\s:])(?:sudo|apt|apt-get): (?:command )?not found|No such file or directory: '(?:sudo|apt|apt-get)'` +
		`|/var/lib/(?:dpkg|apt)/[^\n]*\((?:13|30): |dpkg: error: requested operation requires superuser privilege`)
	noMoreInput = regexp.MustCompile(`(?:^|\n)EOFError: EOF when reading a line\s*$`)
)

// failedWith reports whether a pattern is in what a result says of a failure: the error of code, or what the last command printed, if that failed.
func failedWith(r *farm.Result, pattern *regexp.Regexp) bool {
	switch {
	case r.Execute != nil && r.Execute.Error != nil:
		return pattern.MatchString(r.Execute.Error.Value) || pattern.MatchString(r.Execute.Stderr)
	case r.Execute != nil:
		return r.Execute.ExitCode != 0 && pattern.MatchString(r.Execute.Stderr)
	case r.Command != nil && len(r.Command.Commands) > 0:
		last := r.Command.Commands[len(r.Command.Commands)-1]
		return last.ExitCode != 0 && (pattern.MatchString(last.Stderr) || pattern.MatchString(last.Stdout))
	default:
		return false
	}
}

// diskNote says which limit the disk has and how there is more, if a failure was for lack of it; "" if it was not.
func diskNote(r *farm.Result, s *farm.SandboxSpec) string {
	if !failedWith(r, diskFull) {
		return ""
	}
	return fmt.Sprintf("A folder of the sandbox is full: the workspace and /tmp have %d MiB each (disk_mb), and the home directory, where installed packages are, has four times that. "+
		"Delete files that are not needed, or create a sandbox with more disk_mb; files count against memory_mb, too.", s.Resources.DiskMB)
}

// processesNote says which limit processes have, if one more was refused; "" if none was.
func processesNote(r *farm.Result, s *farm.SandboxSpec) string {
	refused := r.Execute != nil && r.Execute.Error != nil && r.Execute.Error.Name == "BlockingIOError" &&
		slices.ContainsFunc(r.Execute.Error.Traceback, forkRefused.MatchString)
	if !refused && !failedWith(r, tooMany) {
		return ""
	}
	return fmt.Sprintf("The sandbox has as many processes and threads as it may have: %d (pids), with those of the farm's agent and of the interpreters that run. "+
		"Start fewer at once, end those that are not needed, or create a sandbox with more pids.", s.Resources.PIDs)
}

// rootNote says what there is instead of apt and sudo, if one of them was tried; "" if none was. Cells run them with !, which raises nothing.
func rootNote(r *farm.Result) string {
	shown := r.Execute != nil && (needsRoot.MatchString(r.Execute.Stderr) || needsRoot.MatchString(r.Execute.Stdout))
	if !shown && !failedWith(r, needsRoot) {
		return ""
	}
	return "Code in a sandbox is not root, so apt and sudo do not work. " + otherPrograms
}

// inputNote says how code gets values, if it has asked for input; "" if it has not. A cell of a notebook gets none: its client may allow input.
func inputNote(r *farm.Result, request *farm.Request) string {
	if request.Execute != nil && request.Execute.Cell != nil {
		return ""
	}
	asked := r.Execute != nil && r.Execute.Error != nil && r.Execute.Error.Name == "StdinNotImplementedError"
	if !asked && !failedWith(r, noMoreInput) {
		return ""
	}
	return "Code cannot ask for input here: pass the values in the code, as files or as environment variables (env), or give a command its input (echo yes | …). " +
		"A program that must ask runs in a terminal: sandfarm ssh, or a process with a terminal (POST …/processes)."
}
