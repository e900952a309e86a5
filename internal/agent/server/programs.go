package server

import (
	_ "embed"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/sandfarm/sandfarm/internal/farm"
)

//go:embed programs.py
var programsSource []byte

// maxRequirementsFiles bounds the files of requirements that are read for one execution.
const maxRequirementsFiles = 10

// commandsQuestion is what a Python of its own is asked about commands.
type commandsQuestion struct {
	Commands  []string `json:"commands"`
	Cwd       string   `json:"cwd"`
	Workspace string   `json:"workspace"`
}

// commandsNeed is what it says: what the Python programs that the commands start import and is not there, and which files of the
// workspace list their requirements.
type commandsNeed struct {
	Missing      []string `json:"missing"`
	Requirements []string `json:"requirements"`
}

// needOf asks what commands need. Where no Python can say it, they need nothing.
func (s *Server) needOf(commands []string, cwd string) commandsNeed {
	var need commandsNeed
	p := s.python()
	if p.path == "" {
		return need
	}
	text, err := json.Marshal(commandsQuestion{Commands: commands, Cwd: s.directory(cwd), Workspace: s.cfg.Workspace})
	if err != nil {
		return need
	}
	file := filepath.Join(s.cfg.RunDir, "commands-"+randomHex())
	program := filepath.Join(s.cfg.RunDir, "sandfarm_programs.py")
	if err := errors.Join(putFile(s.probePath(), probeSource), putFile(program, programsSource), os.WriteFile(file, text, 0o600)); err != nil {
		return need
	}
	defer func() { _ = os.Remove(file) }()
	raw, err := s.ask([]string{p.path, program, file}, s.env, s.cfg.Workspace)
	if err != nil || json.Unmarshal(raw, &need) != nil {
		return commandsNeed{}
	}
	need.Requirements = need.Requirements[:min(len(need.Requirements), maxRequirementsFiles)]
	return need
}

// need finds what an automatic install is for: imports that are not there, and files that list requirements.
func (in *install) need() commandsNeed {
	spec := in.spec.Install
	if spec.Manager != farm.ManagerPip {
		return commandsNeed{}
	}
	if len(spec.Commands) > 0 {
		return in.s.needOf(spec.Commands, spec.Cwd)
	}
	return commandsNeed{Missing: in.missing(), Requirements: []string{requirementsFile}}
}
