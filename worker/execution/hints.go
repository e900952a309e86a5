package execution

import (
	"fmt"
	"regexp"

	"github.com/sandfarm/sandfarm/internal/farm"
)

var (
	// missingInCode matches the value of a ModuleNotFoundError. A part of a package that is there is not meant: an index does not have it.
	missingInCode = regexp.MustCompile(`^No module named '([A-Za-z]\w*)'$`)
	// missingInCommand matches the last line of a program that lacks a module, and what python -m prints.
	missingInCommand = regexp.MustCompile(`(?:^|\n)(?:ModuleNotFoundError: |\S*python[0-9.]*: )No module named '?([A-Za-z]\w*)'?\s*$`)
	// missingInNode matches what Node prints for a package that is not installed. A path is a file of the caller's.
	missingInNode = regexp.MustCompile(`Cannot find (?:module|package) '((?:@[a-z0-9][\w.-]*/)?[a-z0-9][\w.-]*)'`)
	// aptRefused matches what apt prints to a user who is not root, and on a read-only root.
	aptRefused = regexp.MustCompile(`(?:^|\n)E: .*(?:are you root|Permission denied|Read-only file system)`)
	// missingProgram matches what shells print for a program that is not there.
	missingProgram = regexp.MustCompile(`(?:^|\n)\S*sh: (?:line )?(?:\d+: )?([\w.+-]+): (?:command )?not found\s*$`)
)

const (
	// notFound is the exit code of a shell that has not found a program.
	notFound = 127
	// otherPrograms says where programs come from that the image lacks.
	otherPrograms = "Packages of pip and npm can be installed. Other programs need another image, which the operator of the farm adds."
)

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
	if aptRefused.MatchString(last.Stderr) && last.ExitCode != 0 {
		return "Code in a sandbox is never root, so apt installs nothing. " + otherPrograms
	}
	found := missingProgram.FindStringSubmatch(last.Stderr)
	if found == nil || last.ExitCode != notFound {
		return ""
	}
	if name := found[1]; name == "node" || name == "npm" || name == "npx" {
		return fmt.Sprintf("This image has no %s: create a sandbox with the image node.", name)
	}
	return fmt.Sprintf("This image has no program %s. ", found[1]) + otherPrograms
}

// inputNote says how code gets values, if it has asked for input; "" if it has not. A cell of a notebook gets none: its client may allow input.
func inputNote(r *farm.Result, request *farm.Request) string {
	if r.Execute == nil || r.Execute.Error == nil || r.Execute.Error.Name != "StdinNotImplementedError" || request.Execute == nil || request.Execute.Cell != nil {
		return ""
	}
	return "Code cannot ask for input here: pass the values in the code, as files or as environment variables (env)."
}
