package server

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/kernel"
	"github.com/sandfarm/sandfarm/internal/farm"
)

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
