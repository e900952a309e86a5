package server

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/install"
	"github.com/sandfarm/sandfarm/internal/agent/kernel"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// maxIDBytes bounds the id of an execution.
	maxIDBytes = 128
	// framePause is the minimum time between two batches of frames to one reader, so that small writes are combined.
	framePause = 2 * time.Millisecond
	// firstPause is how long the first batch waits for the end: frames of short code are sent at once, with the header of the answer.
	firstPause = 4 * time.Millisecond
)

func (s *Server) getInfo(http.ResponseWriter, *http.Request) (any, error) {
	used, limit := process.Memory()
	return agent.Info{
		Version: s.cfg.Version, Languages: s.kernels.Languages(), Kernels: s.kernels.Running(),
		UsedBytes: used, LimitBytes: limit, OOMKills: process.Kills(),
	}, nil
}

// getExecutions lists the executions that run or have frames, or describes the one of the query.
func (s *Server) getExecutions(_ http.ResponseWriter, r *http.Request) (any, error) {
	if id := r.URL.Query().Get("id"); id != "" {
		return s.executions.describe(id), nil
	}
	return s.executions.list(), nil
}

// putExecution starts an execution, unless its id is known. With a number in the query from, it streams the frames too, as getFrames does.
func (s *Server) putExecution(w http.ResponseWriter, r *http.Request) (any, error) {
	id := r.PathValue("id")
	if len(id) > maxIDBytes {
		return nil, farm.Invalidf("id has %d bytes; at most %d are allowed", len(id), maxIDBytes)
	}
	if !s.executions.has(id) {
		if err := s.startExecution(w, r, id); err != nil {
			return nil, err
		}
	}
	if !r.URL.Query().Has("from") {
		return nil, nil
	}
	return s.getFrames(w, r)
}

func (s *Server) startExecution(w http.ResponseWriter, r *http.Request, id string) error {
	var spec agent.Spec
	if err := readJSON(w, r, &spec); err != nil {
		return err
	}
	switch spec.Kind {
	case farm.KindCommand:
		if len(spec.Commands) == 0 {
			return farm.Invalidf("there is no command to run")
		}
	case farm.KindExecute:
		if err := s.kernels.Check(spec.Context, spec.Language); err != nil {
			return err
		}
	case farm.KindInstall:
		if err := install.Check(spec.Install); err != nil {
			return err
		}
	default:
		return farm.Invalidf("kind %q cannot be executed", spec.Kind)
	}
	withoutMissingHome(spec.Env)
	return s.executions.start(execution.New(id, spec, s.cfg.LogBytes, time.Now()), s.run)
}

// getFrames streams frames until the final one. It batches frames that arrive in quick succession.
func (s *Server) getFrames(w http.ResponseWriter, r *http.Request) (any, error) {
	log, err := s.executions.log(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	from, err := number(r, "from")
	if err != nil {
		return nil, err
	}
	from = max(from, 1)
	flush := http.NewResponseController(w).Flush
	gather(r.Context(), log.Final(), firstPause)
	if first, last, _, _ := log.State(); from >= first {
		w.Header().Set("Content-Type", agent.FramesType)
		w.WriteHeader(http.StatusOK)
		if from > last {
			if err := flush(); err != nil {
				return nil, err
			}
		}
	}
	out := frameWriter{w: w}
	for {
		frames, err := log.Next(r.Context(), from)
		if err != nil {
			return nil, err
		}
		if _, err := out.write(frames); err != nil {
			return nil, err
		}
		last := frames[len(frames)-1]
		from = last.Seq + 1
		if last.Type == agent.FrameFinal {
			return nil, nil
		}
		if err := flush(); err != nil {
			return nil, err
		}
		gather(r.Context(), log.Final(), framePause)
	}
}

// frameWriter writes frames to an answer. The zero value needs its w.
type frameWriter struct {
	w    io.Writer
	head []byte // of one frame; its memory is used again
}

// write writes frames, and returns how many bytes they took.
func (o *frameWriter) write(frames []agent.Frame) (bytes int, err error) {
	for _, f := range frames {
		o.head = agent.AppendFrameHeader(o.head[:0], f)
		if _, err := o.w.Write(o.head); err != nil {
			return bytes, err
		}
		if _, err := o.w.Write(f.Payload); err != nil {
			return bytes, err
		}
		bytes += len(o.head) + len(f.Payload)
	}
	return bytes, nil
}

// gather waits for more frames, but not beyond the end of an execution.
func gather(ctx context.Context, final <-chan struct{}, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-final:
	case <-ctx.Done():
	}
}

func (s *Server) postAck(_ http.ResponseWriter, r *http.Request) (any, error) {
	log, err := s.executions.log(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	seq, err := number(r, "seq")
	if err != nil {
		return nil, err
	}
	log.Ack(seq)
	return nil, nil
}

func (s *Server) postStop(_ http.ResponseWriter, r *http.Request) (any, error) {
	e, err := s.executions.get(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	stop := execution.StopInterrupt
	switch reason := agent.StopReason(r.URL.Query().Get("reason")); reason {
	case agent.StopInterrupt:
	case agent.StopCancel:
		stop = execution.StopCancel
	default:
		return nil, farm.Invalidf("reason %q is neither interrupt nor cancel", execution.Cut(string(reason), 64))
	}
	if e != nil {
		e.Stop(stop)
	}
	return nil, nil
}

// deleteExecutions forgets several executions.
func (s *Server) deleteExecutions(_ http.ResponseWriter, r *http.Request) (any, error) {
	s.executions.forget(r.URL.Query()["id"]...)
	return nil, nil
}

func (s *Server) deleteExecution(_ http.ResponseWriter, r *http.Request) (any, error) {
	s.executions.forget(r.PathValue("id"))
	return nil, nil
}

func (s *Server) postInterrupt(_ http.ResponseWriter, r *http.Request) (any, error) {
	name := r.URL.Query().Get("context")
	for _, e := range s.executions.all() {
		own := e.Spec.Context
		if own == "" {
			own = kernel.DefaultContext
		}
		if e.Spec.Kind == farm.KindExecute && e.HasBegun() && (name == "" || name == own) {
			e.Stop(execution.StopInterrupt)
		}
	}
	return nil, nil
}

func (s *Server) postRestart(_ http.ResponseWriter, r *http.Request) (any, error) {
	return nil, s.kernels.Restart(r.Context(), r.PathValue("context"))
}

func (s *Server) postStart(_ http.ResponseWriter, r *http.Request) (any, error) {
	return nil, s.kernels.Start(r.Context(), r.PathValue("context"), r.URL.Query().Get("language"))
}

// number parses a query parameter; a missing one is 0.
func number(r *http.Request, name string) (uint64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, farm.Invalidf("%s is not a number", name)
	}
	return n, nil
}
