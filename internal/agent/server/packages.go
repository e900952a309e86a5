package server

import (
	"maps"
	"net/http"
	"regexp"
	"slices"

	"github.com/sandfarm/sandfarm/internal/agent/kernel"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxWarm bounds the modules of one request.
const maxWarm = 32

// moduleName matches names of modules.
var moduleName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)

// postWarm imports modules in the Python kernel of a context in advance, and returns those that are loaded then.
func (s *Server) postWarm(_ http.ResponseWriter, r *http.Request) (any, error) {
	modules := r.URL.Query()["module"]
	if len(modules) > maxWarm || slices.ContainsFunc(modules, func(name string) bool { return !moduleName.MatchString(name) }) {
		return nil, farm.Invalidf("module must be at most %d names of Python modules", maxWarm)
	}
	loaded := []string{}
	for _, answer := range s.kernels.Ask(r.PathValue("context"), kernel.Question{Warm: modules, Modules: modules}) {
		loaded = append(loaded, slices.Sorted(maps.Keys(answer.Loaded))...)
	}
	return loaded, nil
}

func (s *Server) getPackages(http.ResponseWriter, *http.Request) (any, error) {
	return s.installer.Packages(), nil
}
