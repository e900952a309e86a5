package server

import (
	_ "embed"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"
)

//go:embed probe.py
var probeSource []byte

// probeTimeout is how long a kernel may take to answer. One that is busy after all does not.
const probeTimeout = 2 * time.Second

// probeQuestion is what a Python is asked.
type probeQuestion struct {
	Code    string   `json:"code,omitempty"`
	Modules []string `json:"modules,omitempty"`
	Warm    []string `json:"warm,omitempty"` // to be imported first, where they are there
}

// probeAnswer is what it says: names of Code's imports that are not there, and versions of Modules that are loaded.
type probeAnswer struct {
	Missing []string          `json:"missing"`
	Loaded  map[string]string `json:"loaded"`
}

func (s *Server) probePath() string { return filepath.Join(s.cfg.RunDir, "sandfarm_probe.py") }

// missingImports asks which imports of code are not there: a kernel that is idle, or a Python of its own.
func (s *Server) missingImports(contextName, code string) []string {
	for _, at := range s.slotsOf(contextName) {
		if answer, err := s.probe(at, probeQuestion{Code: code}); err == nil {
			return answer.Missing
		}
	}
	p := s.python()
	if p.path == "" {
		return nil
	}
	file := filepath.Join(s.cfg.RunDir, "code-"+randomHex())
	if err := errors.Join(putFile(s.probePath(), probeSource), os.WriteFile(file, []byte(code), 0o600)); err != nil {
		return nil
	}
	defer func() { _ = os.Remove(file) }()
	raw, err := s.ask([]string{p.path, s.probePath(), file}, s.env, s.cfg.Workspace)
	var answer probeAnswer
	if err != nil || json.Unmarshal(raw, &answer) != nil {
		return nil
	}
	return answer.Missing
}

// errNoAnswer says that a kernel cannot be asked now.
var errNoAnswer = errors.New("ask kernel: there is none that is idle")

// probe asks the Python kernel of a slot, if it is up and idle. Variables and history of the user stay as they are.
func (s *Server) probe(at *slot, q probeQuestion) (probeAnswer, error) {
	at.mu.Lock()
	k := at.kernel
	at.mu.Unlock()
	if k == nil || !k.spec.own || !k.idle() {
		return probeAnswer{}, errNoAnswer
	}
	m, err := k.codec.request("sandfarm_probe", q, struct{}{})
	if err != nil {
		return probeAnswer{}, err
	}
	reply := make(chan json.RawMessage, 1)
	k.mu.Lock()
	if k.asked == nil {
		k.asked = map[string]chan<- json.RawMessage{}
	}
	k.asked[m.Header.ID] = reply
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		delete(k.asked, m.Header.ID)
		k.mu.Unlock()
	}()
	if err := k.send(k.shell, m); err != nil {
		return probeAnswer{}, err
	}
	limit := probeTimeout
	if len(q.Warm) > 0 {
		limit = warmTimeout
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var answer probeAnswer
	select {
	case raw := <-reply:
		return answer, json.Unmarshal(raw, &answer)
	case <-k.proc.done:
	case <-k.closed:
	case <-timer.C:
	}
	return answer, errNoAnswer
}

// idle reports whether the kernel is up and runs nothing.
func (k *kernel) idle() bool {
	select {
	case <-k.ready:
	default:
		return false
	}
	if k.dead() {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current == nil
}

// answered hands the answer of a probe to whoever asked.
func (k *kernel) answered(m message) {
	k.mu.Lock()
	reply := k.asked[m.Parent.ID]
	k.mu.Unlock()
	if reply != nil {
		select {
		case reply <- m.Content:
		default:
		}
	}
}
