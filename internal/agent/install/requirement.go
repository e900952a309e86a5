package install

import (
	"regexp"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// maxRequirements bounds the packages of one install.
	maxRequirements = 1000
	// maxRequirementBytes bounds one requirement.
	maxRequirementBytes = 1 << 10
)

// The grammar of requirements: PEP 508 without URLs, so nothing that an installer would read as a flag, a path or a URL.
const (
	specifier  = `(?:===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9_.*+!-]+`
	markerTerm = `(?:[a-z_]+|"[A-Za-z0-9_.+ -]*"|'[A-Za-z0-9_.+ -]*')`
	comparison = `\(*\s*` + markerTerm + `\s*(?:===|==|~=|!=|<=|>=|<|>|\bnot\s+in\b|\bin\b)\s*` + markerTerm + `\s*\)*`
)

var (
	pipPattern = regexp.MustCompile(`^\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(\[[A-Za-z0-9._, -]*\])?\s*` +
		`(?:\(\s*)?(` + specifier + `(?:\s*,\s*` + specifier + `)*)?\s*\)?\s*` +
		`(;\s*` + comparison + `(?:\s*\b(?:and|or)\b\s*` + comparison + `)*)?\s*$`)
	npmPattern   = regexp.MustCompile(`^((?:@[a-z0-9][a-z0-9._-]*/)?[a-z0-9_][A-Za-z0-9._-]*)(?:@([A-Za-z0-9^~<>=*][A-Za-z0-9._^~<>=*+ |-]*))?$`)
	exactPattern = regexp.MustCompile(`^==\s*([A-Za-z0-9_.+!-]+)$`)
)

// requirement is one requested package.
type requirement struct {
	line    string // the line for the installer
	name    string // normalised
	bare    bool   // nothing but a name
	exact   string // the version of name==version
	marked  bool   // it has a condition (an environment marker)
	asked   string // as written in the request
	why     string
	problem string // why it cannot be installed, in a sentence
	fine    string // a note about a successful install, in a sentence
}

// parseRequirement checks a requirement. One that must not reach an installer has a problem.
func parseRequirement(manager, text string) *requirement {
	r := &requirement{asked: execution.Cut(text, maxRequirementBytes), line: strings.TrimSpace(text)}
	if manager == farm.ManagerNpm {
		m := npmPattern.FindStringSubmatch(r.line)
		if m == nil || len(text) > maxRequirementBytes || strings.HasPrefix(r.line, "-") {
			r.problem = "This is not the name of an npm package: a name, or name@version."
			return r
		}
		r.name, r.bare = m[1], m[2] == ""
		return r
	}
	m := pipPattern.FindStringSubmatch(text)
	if m == nil || len(text) > maxRequirementBytes || strings.ContainsAny(text, "\r\n\x00") {
		r.problem = "This is not a requirement that can be installed: a name, with a version as in name==1.2 or name>=1,<2 when one is needed. Flags, paths and URLs are not accepted."
		return r
	}
	r.name = farm.NormalPackage(farm.ManagerPip, m[1])
	r.marked = m[4] != ""
	r.bare = m[2] == "" && m[3] == "" && !r.marked
	if e := exactPattern.FindStringSubmatch(m[3]); e != nil && m[2] == "" && !r.marked && !strings.HasSuffix(e[1], "*") {
		r.exact = e[1]
	}
	return r
}

// met reports whether an installed package is known, without an installer, to meet the requirement.
func (r *requirement) met(there map[string]distribution) bool {
	d, ok := there[r.name]
	return ok && (r.bare || r.exact != "" && r.exact == d.version)
}

// outcome returns the report on the requirement.
func (r *requirement) outcome(version string) farm.PackageOutcome {
	out := farm.PackageOutcome{Name: r.name, Requested: r.asked, Version: version, Status: farm.PackageInstalled, Message: r.fine, Why: r.why}
	if r.problem != "" {
		out.Status, out.Message, out.Version = farm.PackageFailed, r.problem, ""
	}
	if out.Name == "" {
		out.Name = out.Requested
	}
	return out
}
