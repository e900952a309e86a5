package server

import (
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/kernel"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func (s *Server) getContexts(http.ResponseWriter, *http.Request) (any, error) {
	return s.kernels.Contexts(), nil
}

func (s *Server) putContext(w http.ResponseWriter, r *http.Request) (any, error) {
	var c farm.CodeContext
	if err := readJSON(w, r, &c); err != nil {
		return nil, err
	}
	c.Name = r.PathValue("context")
	return s.kernels.Create(c)
}

func (s *Server) deleteContext(_ http.ResponseWriter, r *http.Request) (any, error) {
	return nil, s.kernels.Remove(r.PathValue("context"), r.URL.Query().Get("language"))
}

// maxMessagesWait bounds one question for messages.
const maxMessagesWait = time.Minute

// getMessages answers with what the kernel of a context has said to notebooks after the message with the number after, as frames. It waits for
// one for as many milliseconds as the query says.
func (s *Server) getMessages(w http.ResponseWriter, r *http.Request) (any, error) {
	after, err := number(r, "after")
	if err != nil {
		return nil, err
	}
	wait, err := number(r, "wait")
	if err != nil {
		return nil, err
	}
	list, err := s.kernels.Messages(r.Context(), r.PathValue("context"), after, min(time.Duration(min(wait, 1<<30))*time.Millisecond, maxMessagesWait)) //nolint:gosec // bounded
	if err != nil {
		return nil, err
	}
	w.Header().Set("Content-Type", agent.FramesType)
	w.WriteHeader(http.StatusOK)
	out := frameWriter{w: w}
	for _, m := range list {
		raw, err := json.Marshal(m)
		if err != nil {
			return nil, err
		}
		if _, err := out.write([]agent.Frame{{Seq: m.Seq, Type: agent.FrameMessage, Payload: raw}}); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// postAsk asks the kernel of a context what a notebook asks. It starts the kernel if none runs.
func (s *Server) postAsk(w http.ResponseWriter, r *http.Request) (any, error) {
	var q agent.NotebookQuestion
	if err := readJSON(w, r, &q); err != nil {
		return nil, err
	}
	switch kind := kernel.Kind(q.Kind); kind {
	case kernel.Inspect, kernel.Complete, kernel.IsComplete, kernel.History, kernel.CommInfo, kernel.CommOpen, kernel.CommMsg, kernel.CommClose, kernel.Expressions:
		if err := s.kernels.Start(r.Context(), r.PathValue("context"), ""); err != nil {
			return nil, err
		}
		return s.kernels.AskNotebook(r.PathValue("context"), kind, q.Content, q.Message)
	default:
		return nil, farm.Invalidf("kernels do not know the question %q", farm.Shorten(q.Kind))
	}
}

// postInput gives code the line of input that it waits for.
func (s *Server) postInput(w http.ResponseWriter, r *http.Request) (any, error) {
	var in agent.NotebookInput
	if err := readJSON(w, r, &in); err != nil {
		return nil, err
	}
	return nil, s.kernels.Answer(r.PathValue("context"), in.Number, in.Value)
}

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
