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

// inputNote says how code gets values, if it has asked for input; "" if it has not. A cell of a notebook gets none: its client may allow input.
func inputNote(r *farm.Result, request *farm.Request) string {
	if r.Execute == nil || r.Execute.Error == nil || r.Execute.Error.Name != "StdinNotImplementedError" || request.Execute == nil || request.Execute.Cell != nil {
		return ""
	}
	return "Code cannot ask for input here: pass the values in the code, as files or as environment variables (env)."
}
