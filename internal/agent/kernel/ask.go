package kernel

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/probe"
)

// Answer is the answer of the Python kernel of a context.
type Answer struct {
	Context string
	probe.Answer
}

// Ask queries the idle Python kernels of a context (All: of every context). Kernels that do not answer in time are left
// out. The user's variables and history do not change.
func (ks *Kernels) Ask(contextName string, q probe.Question) []Answer {
	var answers []Answer
	for _, at := range ks.slotsOf(contextName) {
		if answer, err := at.ask(q); err == nil {
			answers = append(answers, Answer{Context: at.context, Answer: answer})
		}
	}
	return answers
}

// errNoAnswer means that no kernel is idle.
var errNoAnswer = errors.New("ask kernel: none is idle")

// ask queries the kernel of a slot if it is our own Python kernel and idle.
func (at *slot) ask(q probe.Question) (probe.Answer, error) {
	var answer probe.Answer
	at.mu.Lock()
	k := at.kernel
	at.mu.Unlock()
	if k == nil || !k.spec.own || !k.idle() {
		return answer, errNoAnswer
	}
	m, err := k.codec.request(probe.ModuleName, q, struct{}{})
	if err != nil {
		return answer, err
	}
	reply := make(chan json.RawMessage, 1)
	k.mu.Lock()
	if k.questions == nil {
		k.questions = map[string]chan<- json.RawMessage{}
	}
	k.questions[m.Header.ID] = reply
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		delete(k.questions, m.Header.ID)
		k.mu.Unlock()
	}()
	if err := k.send(k.shell, m); err != nil {
		return answer, err
	}
	timer := time.NewTimer(q.Timeout())
	defer timer.Stop()
	select {
	case raw := <-reply:
		return answer, json.Unmarshal(raw, &answer)
	case <-k.proc.Done():
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

// deliverAnswer passes an answer to its caller.
func (k *kernel) deliverAnswer(m message) {
	k.mu.Lock()
	reply := k.questions[m.Parent.ID]
	k.mu.Unlock()
	if reply != nil {
		select {
		case reply <- m.Content:
		default:
		}
	}
}
