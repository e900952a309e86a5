package server

import (
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// inputBytes is how much of a request's body is written to a process at once.
	inputBytes = 32 << 10
	// endTimeout is how long a DELETE waits for the end of a process beyond its grace, and the answer to a SIGKILL for the end of the process.
	endTimeout = 10 * time.Second
	// minBatch is more than a key or a prompt shows, and maxBatch what needs no company: pieces between the two wait gatherPause for the next ones.
	minBatch, maxBatch = 2 << 10, 32 << 10
	// gatherPause lets small pieces of much output become large ones: each costs the whole way to the reader.
	gatherPause = time.Millisecond
)

func (s *Server) getProcesses(http.ResponseWriter, *http.Request) (any, error) {
	return s.processes.list(), nil
}

func (s *Server) getRunning(http.ResponseWriter, *http.Request) (any, error) {
	return process.Running(time.Now()), nil
}

// postRunningSignal sends a signal to one process, whoever started it.
func (s *Server) postRunningSignal(_ http.ResponseWriter, r *http.Request) (any, error) {
	number, err := farm.Signal(r.URL.Query().Get("signal"))
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(r.PathValue("pid"))
	if err != nil || !process.SignalOne(pid, syscall.Signal(number)) {
		return nil, farm.NotFoundf("The sandbox has no process %q.", execution.Cut(r.PathValue("pid"), 64))
	}
	return struct{}{}, nil
}

func (s *Server) putProcess(w http.ResponseWriter, r *http.Request) (any, error) {
	id := r.PathValue("id")
	if len(id) > maxIDBytes {
		return nil, farm.Invalidf("id has %d bytes; at most %d are allowed", len(id), maxIDBytes)
	}
	var spec farm.ProcessSpec
	if err := readJSON(w, r, &spec); err != nil {
		return nil, err
	}
	if err := checkSpec(spec); err != nil {
		return nil, err
	}
	return s.startProcess(id, spec)
}

func (s *Server) getProcess(_ http.ResponseWriter, r *http.Request) (any, error) {
	p, err := s.processes.get(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	return p.describe(), nil
}

// deleteProcess stops a process and waits for its end, or forgets one that has ended. Its answer is how it ended.
func (s *Server) deleteProcess(_ http.ResponseWriter, r *http.Request) (any, error) {
	p, err := s.processes.get(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	select {
	case <-p.Log.Final():
		s.processes.remove(p.ID)
		return p.describe(), nil
	default:
	}
	p.Stop(execution.StopCancel)
	timer := time.NewTimer(p.Spec.Grace + endTimeout)
	defer timer.Stop()
	select {
	case <-p.Log.Final():
	case <-timer.C:
		return nil, farm.Conflictf("The process does not end, although it was killed. Close the sandbox.")
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	return p.describe(), nil
}

// postSignal sends a signal. The answer to a SIGKILL waits until the process has ended, so whoever has it finds no process to kill again.
func (s *Server) postSignal(_ http.ResponseWriter, r *http.Request) (any, error) {
	p, err := s.processes.get(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	number, err := farm.Signal(r.URL.Query().Get("signal"))
	if err != nil {
		return nil, err
	}
	running := p.now()
	select {
	case <-running.Done(): // its output may not have been read to its end yet
		if p.describe().PID == 0 {
			return nil, farm.Conflictf("The process waits until it is started again. DELETE ends it.")
		}
		return nil, errEnded
	default:
	}
	s.reaper.Signal(running.Process, syscall.Signal(number))
	if syscall.Signal(number) == syscall.SIGKILL {
		timer := time.NewTimer(endTimeout)
		defer timer.Stop()
		select {
		case <-running.Done():
		case <-timer.C:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return p.describe(), nil
}

var errEnded = farm.Conflictf("The process has ended.")

// postStdin writes the body to the input of a process as it comes, and ends the input after it if the query says close=1.
func (s *Server) postStdin(_ http.ResponseWriter, r *http.Request) (any, error) {
	p, err := s.processes.get(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	input := p.now().Input
	if p.describe().State != farm.ProcessRunning {
		return nil, errEnded
	}
	buf := make([]byte, inputBytes)
	total := 0
	for {
		n, err := r.Body.Read(buf)
		if n > 0 {
			written, err := input.Write(buf[:n])
			if total += written; err != nil {
				return nil, err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, farm.Wrap(err, farm.CodeInvalid, "the body could not be read")
		}
	}
	if r.URL.Query().Get("close") == "1" {
		if err := input.End(); err != nil {
			return nil, err
		}
	}
	return map[string]int{"written": total}, nil
}

// putInput writes the body, of at most agent.InputBytes, to the input of a process for the writer of a name. The query says where among all that
// it writes the body begins. It has no effect twice, so it may be sent again over another connection.
func (s *Server) putInput(w http.ResponseWriter, r *http.Request) (any, error) {
	p, err := s.processes.get(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	from, err := number(r, "from")
	if err != nil {
		return nil, err
	}
	name := r.PathValue("writer")
	if len(name) > maxIDBytes || from > math.MaxInt64/2 {
		return nil, farm.Invalidf("writer or from is too long")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, agent.InputBytes)) // before any is written: one that breaks off is sent again
	if err != nil {
		return nil, farm.Wrap(err, farm.CodeInvalid, "the body could not be read, or has more than %d bytes", agent.InputBytes)
	}
	position, err := p.now().Input.WriteFrom(name, int64(from), body, r.URL.Query().Get("close") == "1")
	if err != nil {
		return nil, err
	}
	return map[string]int64{"written": position}, nil
}

func (s *Server) postResize(_ http.ResponseWriter, r *http.Request) (any, error) {
	p, err := s.processes.get(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	var size farm.TerminalSize
	if size.Cols, err = strconv.Atoi(r.URL.Query().Get("cols")); err == nil {
		size.Rows, err = strconv.Atoi(r.URL.Query().Get("rows"))
	}
	if err != nil || !size.Valid() {
		return nil, farm.Invalidf("cols and rows are numbers from 1 to %d", farm.MaxTerminalSide)
	}
	if err := p.resize(size); err != nil {
		return nil, err
	}
	return p.describe(), nil
}

// getOutput streams the output of a process from the frame from on (0: the first that is kept) to the reader of a name. The answer ends after
// the final frame, and after about agent.OutputBytes.
func (s *Server) getOutput(w http.ResponseWriter, r *http.Request) (any, error) {
	p, err := s.processes.get(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	from, err := number(r, "from")
	if err != nil {
		return nil, err
	}
	reader := r.URL.Query().Get("reader")
	if reader == "" || len(reader) > maxIDBytes {
		return nil, farm.Invalidf("reader is missing or too long")
	}
	done, err := p.Log.Enter(reader, from, p.limit)
	if err != nil {
		return nil, err
	}
	defer done()
	w.Header().Set("Content-Type", agent.FramesType)
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w).Flush
	if err := flush(); err != nil {
		return nil, err
	}
	out := frameWriter{w: w}
	for bytes, count := 0, 0; bytes < p.Log.AnswerBytes() && count < p.Log.AnswerFrames(); {
		frames, err := p.Log.Part(r.Context(), from, p.Log.AnswerBytes()-bytes)
		if err != nil {
			return nil, err
		}
		written, err := out.write(frames)
		if err != nil {
			return nil, err
		}
		bytes += written
		last := frames[len(frames)-1]
		from = last.Seq + 1
		if err := flush(); err != nil {
			return nil, err
		}
		if last.Type == agent.FrameFinal {
			return nil, nil
		}
		count += len(frames)
		if gathers(written) {
			gather(r.Context(), p.Log.Final(), gatherPause)
		}
	}
	return nil, nil
}

// gathers reports whether, after a part of so many bytes, the next one should be larger. The part itself was sent at once.
func gathers(written int) bool { return written >= minBatch && written < maxBatch }

// deleteReader says that a reader will not come back.
func (s *Server) deleteReader(_ http.ResponseWriter, r *http.Request) (any, error) {
	p, err := s.processes.get(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	p.Log.Leave(r.URL.Query().Get("reader"))
	return nil, nil
}
