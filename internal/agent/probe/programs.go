package probe

import (
	"encoding/json"

	"github.com/sandfarm/sandfarm/internal/agent/process"
)

// maxRequirementsFiles bounds the requirements files of one answer.
const maxRequirementsFiles = 10

// programsQuestion is the input of programs.py.
type programsQuestion struct {
	Commands  []string `json:"commands"`
	Cwd       string   `json:"cwd"`
	Workspace string   `json:"workspace"`
}

// Needs is what programs need.
type Needs struct {
	Missing      []string `json:"missing"`      // imports that are not installed
	Requirements []string `json:"requirements"` // files of the workspace that list requirements
}

// NeedsOfCommands returns what the Python programs started by shell commands need. cwd is that of agent.Spec. Nothing is executed.
// It returns nothing if the image has no Python.
func (p *Python) NeedsOfCommands(commands []string, cwd string) Needs {
	question := programsQuestion{Commands: commands, Cwd: process.Directory(p.cfg.Workspace, cwd), Workspace: p.cfg.Workspace}
	input, err := json.Marshal(question)
	if err != nil {
		return Needs{}
	}
	var needs Needs
	if p.ask(programsFile, input, &needs) != nil {
		return Needs{}
	}
	needs.Requirements = needs.Requirements[:min(len(needs.Requirements), maxRequirementsFiles)]
	return needs
}
