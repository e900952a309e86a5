package server

import (
	"context"
	"fmt"
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

// run runs an execution to its final frame.
func (s *Server) run(e *execution.Execution) {
	defer func() {
		if r := recover(); r != nil {
			s.cfg.Logger.Error("execution panicked", "panic", fmt.Sprint(r))
			e.Finish(execution.Failed("AgentError", fmt.Sprint(r)))
		}
	}()
	switch e.Spec.Kind {
	case farm.KindExecute:
		s.kernels.Run(e)
		return
	case farm.KindInstall:
		s.installer.Run(e)
		return
	}
	e.Begin()
	e.Finish(s.measured(e, s.commands.Run))
}

// measured runs an execution and adds to its outcome the time it took, the files it changed, and whether the kernel killed it
// because its memory was used up.
func (s *Server) measured(e *execution.Execution, body func(*execution.Execution) agent.Outcome) agent.Outcome {
	kills := s.kills()
	before := s.files.Snapshot()
	began := time.Now()
	out := body(e)
	out.RunMS = float64(time.Since(began).Microseconds()) / 1000
	out.Files, out.Skipped, out.LeftOut = before.Changes(e.Spec.MaxFiles, e.Spec.MaxFileBytes)
	return s.ended(e, out, kills)
}

// kills counts what was killed in the sandbox for its limits.
type kills struct{ kernel, sockets, terminals, memory int64 }

func (s *Server) kills() kills {
	return kills{process.Kills(), s.cfg.Sockets.Kills(), s.cfg.Terminals.Kills(), s.cfg.Memory.Kills()}
}

// ended adds to an outcome which of the sandbox's limits ended the code, if one did since before.
func (s *Server) ended(e *execution.Execution, out agent.Outcome, before kills) agent.Outcome {
	died := out.ExitCode == process.ExitKilled || (out.Error != nil && out.Error.Name == farm.ErrorKernelDied)
	if !died {
		return out
	}
	now := s.kills()
	sentence := ""
	switch {
	case !e.IsStopped() && (now.kernel > before.kernel || now.memory > before.memory):
		_, limit := process.Memory()
		files, places := s.kernels.Files()
		sentence = memorySentence(limit, files, places)
	case now.sockets > before.sockets:
		sentence = socketSentence()
	case now.terminals > before.terminals:
		sentence = terminalSentence()
	default:
		return out
	}
	if out.Restarted {
		sentence += " A new kernel has been started; variables are gone."
	}
	out.OutOfMemory = true
	out.Error = &farm.CodeError{Name: farm.ErrorOutOfMemory, Value: sentence, Traceback: []string{}}
	return out
}

func socketSentence() string {
	return fmt.Sprintf("The code was ended because the sandbox had more than %d sockets, with connections that it had not accepted. Accept or close connections.", process.MaxSockets)
}

func terminalSentence() string {
	return fmt.Sprintf("The code was ended because the sandbox had more than %d pseudo-terminals. Close those that are not used.", process.MaxTerminals)
}

// filesPart is the part of the limit of memory that files take when the sentence about it names them.
const filesPart = 4

// memorySentence says that the code reached this limit of memory (0: unknown), and which files take a good part of it: so many bytes in
// these places.
func memorySentence(limit, files int64, places string) string {
	const help = "se less memory at once, or " + farm.MoreMemory + "."
	switch {
	case limit <= 0:
		return "The code was ended because the sandbox's memory limit was reached. U" + help
	case files < limit/filesPart || places == "":
		return fmt.Sprintf("The code was ended because it reached the sandbox's memory limit of %d MiB. U%s", limit>>20, help)
	default:
		return fmt.Sprintf("The code was ended because it reached the sandbox's memory limit of %d MiB. Files take %d MiB of it (%s). Delete some of them, u%s",
			limit>>20, files>>20, places, help)
	}
}
