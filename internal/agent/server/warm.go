package server

import (
	"errors"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// warmTimeout is what imports may take: from a cold disk, in a sandbox with a sliver of a CPU.
	warmTimeout = 2 * time.Minute
	// maxWarm bounds the modules of one request.
	maxWarm = 32
)

// moduleName is what a module is called.
var moduleName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)

// postWarm imports modules in the Python kernel of a context, ahead of need.
func (s *Server) postWarm(_ http.ResponseWriter, r *http.Request) (any, error) {
	modules := r.URL.Query()["module"]
	if len(modules) > maxWarm || slices.ContainsFunc(modules, func(name string) bool { return !moduleName.MatchString(name) }) {
		return nil, farm.Invalidf("module must be given with names of at most %d modules", maxWarm)
	}
	loaded := []string{}
	for _, at := range s.slotsOf(r.PathValue("context")) {
		answer, err := s.probe(at, probeQuestion{Warm: modules, Modules: modules})
		if errors.Is(err, errNoAnswer) {
			continue // another kernel, or none
		}
		if err != nil {
			return nil, err
		}
		loaded = append(loaded, slices.Sorted(maps.Keys(answer.Loaded))...)
	}
	return loaded, nil
}
