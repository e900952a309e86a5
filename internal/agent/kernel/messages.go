package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// MaxMessages and MaxMessageBytes bound what is kept of the messages of a context for notebooks; one message may go beyond.
	MaxMessages = 5000
	// MaxMessageBytes are their bytes together.
	MaxMessageBytes = 4 << 20
	// messageExtra is about what a message takes beside its content.
	messageExtra = 256
	// answerBytes is about how much one answer has. Its reader asks for more then.
	answerBytes = 256 << 10
)

// KindEnded is the kind of the message that a kernel has ended while it ran nothing, or, with the content {"asked":true}, is about to be
// restarted on request.
const KindEnded = "ended"

// KindExecution is the kind of the message that an execution begins which is no cell of a notebook: Message.Execution.
const KindExecution = "execution"

// messages are what the kernel of a context says to notebooks beside its executions, numbered from 1. The oldest are dropped. The zero value
// has none.
type messages struct {
	mu    sync.Mutex
	kept  []agent.Message
	bytes int
	last  uint64
	more  chan struct{} // closed when there is another one; nil: no reader waits
}

// add numbers a message and keeps it.
func (l *messages) add(m agent.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	m.Seq = l.last
	l.kept = append(l.kept, m)
	l.bytes += len(m.Content) + messageExtra
	for len(l.kept) > 1 && (len(l.kept) > MaxMessages || l.bytes > MaxMessageBytes) {
		l.bytes -= len(l.kept[0].Content) + messageExtra
		l.kept[0] = agent.Message{}
		l.kept = l.kept[1:]
	}
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
}

// after returns messages after a number. It waits for one if there is none.
func (l *messages) after(ctx context.Context, seq uint64, wait time.Duration) (list []agent.Message) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		l.mu.Lock()
		size := 0
		for _, m := range l.kept {
			if m.Seq > seq && (len(list) == 0 || size+len(m.Content) <= answerBytes) {
				list, size = append(list, m), size+len(m.Content)+messageExtra
			} else if m.Seq > seq {
				break
			}
		}
		if l.more == nil {
			l.more = make(chan struct{})
		}
		more := l.more
		l.mu.Unlock()
		if len(list) > 0 || wait <= 0 {
			return list
		}
		select {
		case <-more:
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// Messages returns what the kernel of a context has said to notebooks beside its executions after the message with a number. It waits for one
// if there is none.
func (ks *Kernels) Messages(ctx context.Context, contextName string, after uint64, wait time.Duration) ([]agent.Message, error) {
	at, err := ks.pythonSlot(contextName)
	if err != nil {
		return nil, err
	}
	return at.messages.after(ctx, after, wait), nil
}

// pythonSlot is the slot of a context in which Python runs.
func (ks *Kernels) pythonSlot(contextName string) (*slot, error) {
	key, err := ks.normalize(contextName, defaultLanguage)
	if err != nil {
		return nil, err
	}
	return ks.slot(key)
}

// say passes a message of a kernel on to notebooks. It belongs after a frame of an execution, if one has sent it.
func (at *slot) say(m controlMessage, id string, after uint64) {
	content := m.Content
	if len(content) > maxDisplayBytes {
		content, _ = json.Marshal(map[string]string{"name": "stderr", "text": "[a message for the notebook was left out: it is too large]\n"})
		m.Kind = "stream"
	}
	at.messages.add(agent.Message{Kind: execution.Cut(m.Kind, maxKindBytes), Parent: execution.Cut(m.Parent, maxParentBytes), Number: m.Number, Content: content, Execution: id, After: after})
}

const maxKindBytes, maxParentBytes = 64, 256

// answered passes a notebook's answer to a question for input on to the kernel.
type answered struct {
	Op     string `json:"op"`
	Number uint64 `json:"number"`
	Value  string `json:"value"`
}

// Answer gives the code of a context the line of input that it has asked for under a number. An answer that the code does not wait for is ignored.
func (ks *Kernels) Answer(contextName string, number uint64, value string) error {
	for _, at := range ks.slotsOf(contextName) {
		at.mu.Lock()
		k := at.kernel
		at.mu.Unlock()
		if k != nil && k.up() {
			return k.control.write(answered{Op: "input", Number: number, Value: value})
		}
	}
	return farm.Errorf(farm.CodeUnavailable, "No kernel of context %q waits for input.", execution.Cut(contextName, 64))
}

// Answer is the answer of the Python kernel of a context.
type Answer struct {
	Context string
	ProbeAnswer
}

// Ask queries the idle Python kernels of a context (All: of every context). Kernels that do not answer in time are left
// out. The user's variables and history do not change.
func (ks *Kernels) Ask(contextName string, q Question) []Answer {
	var answers []Answer
	for _, at := range ks.slotsOf(contextName) {
		if answer, err := at.ask(q); err == nil {
			answers = append(answers, Answer{Context: at.context, ProbeAnswer: answer})
		}
	}
	return answers
}

// A Kind is a kind of question that a notebook asks. Question and answer are the contents of Jupyter's messages; buffers of comms are
// base64 in the content.
type Kind string

// The kinds.
const (
	Inspect    Kind = "inspect"
	Complete   Kind = "complete"
	IsComplete Kind = "is_complete"
	History    Kind = "history"
	CommInfo   Kind = "comm_info"
	CommOpen   Kind = "comm_open"
	CommMsg    Kind = "comm_msg"
	CommClose  Kind = "comm_close"
	// Expressions are evaluated after a cell: by name.
	Expressions Kind = "expressions"
)

// askTimeout bounds the answer to a notebook's question. The first completion loads a library.
const askTimeout = 30 * time.Second

// AskNotebook asks the Python kernel of a context what a notebook asks. A kernel that runs code answers when it is done, or not in time.
// What it prints and displays meanwhile belongs to message, an id of the
// notebook's choice. An answer whose status is error has ename, evalue and traceback. CodeUnavailable: there is no answer. CodeTooLarge: it has more than
// agent.MaxAnswerBytes.
func (ks *Kernels) AskNotebook(contextName string, kind Kind, content any, message string) (json.RawMessage, error) {
	for _, at := range ks.slotsOf(contextName) {
		at.mu.Lock()
		k := at.kernel
		at.mu.Unlock()
		if k == nil || !k.up() {
			continue
		}
		raw, err := k.ask(string(kind), content, message, askTimeout)
		if err != nil {
			continue
		}
		if raw, err = json.Marshal(raw); err != nil { // as it is sent: < takes six bytes
			return nil, err
		}
		if len(raw) > agent.MaxAnswerBytes {
			return nil, farm.Errorf(farm.CodeTooLarge, "The kernel's answer has %d bytes; at most %d are allowed.", len(raw), agent.MaxAnswerBytes)
		}
		return raw, nil
	}
	return nil, farm.Errorf(farm.CodeUnavailable, "No kernel of context %q answers.", execution.Cut(contextName, 64))
}

// errNoAnswer means that no kernel is idle.
var errNoAnswer = errors.New("ask kernel: none is idle")

// ask queries the kernel of a slot if it is idle.
func (at *slot) ask(q Question) (ProbeAnswer, error) {
	var answer ProbeAnswer
	at.mu.Lock()
	k := at.kernel
	at.mu.Unlock()
	if k == nil || !k.idle() {
		return answer, errNoAnswer
	}
	raw, err := k.ask("probe", q, "", q.Timeout())
	if err != nil {
		return answer, err
	}
	return answer, json.Unmarshal(raw, &answer)
}

// question asks a kernel something that it answers between executions.
type question struct {
	Op      string `json:"op"`
	Kind    string `json:"kind"`
	Number  uint64 `json:"number"`
	Content any    `json:"content"`
	Message string `json:"message,omitempty"` // of a notebook: the id of what asks
}

// ask asks a kernel a question and waits for the answer.
func (k *kernel) ask(kind string, content any, message string, timeout time.Duration) (json.RawMessage, error) {
	answer := make(chan json.RawMessage, 1)
	k.mu.Lock()
	k.question++
	number := k.question
	k.questions[number] = answer
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		delete(k.questions, number)
		k.mu.Unlock()
	}()
	if err := k.control.write(question{Op: "ask", Kind: kind, Number: number, Content: content, Message: message}); err != nil {
		return nil, err
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case raw := <-answer:
		return raw, nil
	case <-k.proc.Done():
	case <-k.closed:
	case <-timer.C:
	}
	return nil, errNoAnswer
}

// up reports whether the kernel has started and not ended.
func (k *kernel) up() bool {
	select {
	case <-k.ready:
		return !k.dead()
	default:
		return false
	}
}

// idle reports whether the kernel is up and runs nothing.
func (k *kernel) idle() bool {
	return k.up() && !k.busy()
}

// busy reports whether an execution is the kernel's, also if it has ended meanwhile.
func (k *kernel) busy() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current != nil
}

// deliverAnswer passes an answer to its caller.
func (k *kernel) deliverAnswer(number uint64, content json.RawMessage) {
	k.mu.Lock()
	answer := k.questions[number]
	k.mu.Unlock()
	if answer != nil {
		select {
		case answer <- content:
		default:
		}
	}
}
