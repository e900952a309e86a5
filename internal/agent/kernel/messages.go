package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
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
	// answerPause is the time between two answers with messages: code may send them one by one without end.
	answerPause = 20 * time.Millisecond
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
	asked time.Time     // of the last answer with messages
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

// after returns messages after a number. It waits for one if there is none, and for answerPause after an answer with messages.
func (l *messages) after(ctx context.Context, seq uint64, wait time.Duration) (list []agent.Message) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		l.mu.Lock()
		if pause := answerPause - time.Since(l.asked); l.last > seq && pause > 0 {
			l.mu.Unlock()
			rest := time.NewTimer(pause)
			select {
			case <-rest.C:
			case <-ctx.Done():
			}
			rest.Stop()
			l.mu.Lock()
		}
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
		if len(list) > 0 {
			l.asked = time.Now()
		}
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
	at.messages.add(agent.Message{Kind: execution.Cut(m.Kind, agent.MaxKindBytes), Parent: execution.Cut(m.Parent, agent.MaxParentBytes), Number: m.Number, Content: content, Execution: id, After: after})
}

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

// AskNotebook asks the Python kernel of a context what a notebook asks. A kernel that runs code answers when it is done, or not in time: a message
// of a comm that is asked again then reaches it once. What it prints and displays meanwhile belongs to message, an id of the
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

// maxPosed bounds the questions that a kernel has not answered and somebody waits for, those that it has not read, messages of comms without an answer,
// and the answers that nobody has taken.
const maxPosed = 64

// posed is a question that a kernel was asked.
type posed struct {
	key      string        // of a message of a comm: its kind and id; it is not posed again while nobody has taken its answer
	waiting  int           // how many wait for the answer
	written  bool          // whether the kernel has the question
	answered chan struct{} // closed when there is answer
	answer   json.RawMessage
}

// ask asks a kernel a question and waits for the answer. A message of a comm that was asked before, and not answered in time, waits for that answer.
func (k *kernel) ask(kind string, content any, message string, timeout time.Duration) (json.RawMessage, error) {
	key := ""
	if comm := []Kind{CommOpen, CommMsg, CommClose}; message != "" && slices.Contains(comm, Kind(kind)) {
		key = kind + " " + message
	}
	number, p, fresh := k.pose(key)
	if p == nil {
		return nil, errNoAnswer
	}
	failed := make(chan error, 1)
	if fresh {
		// Not in time for a kernel that runs code and has much to read. It ends when the kernel reads, or ends.
		go func() {
			err := k.control.write(question{Op: "ask", Kind: kind, Number: number, Content: content, Message: message})
			k.mu.Lock()
			if p.written = true; err != nil || p.over() {
				delete(k.questions, number)
			}
			k.mu.Unlock()
			if err != nil {
				failed <- err
			}
		}()
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	err := errNoAnswer
	select {
	case <-p.answered:
	case err = <-failed:
	case <-k.proc.Done():
	case <-k.closed:
	case <-timer.C:
	}
	if raw, ok := k.leave(number, p); ok {
		return raw, nil
	}
	return nil, err
}

// pose finds a message of a comm that was posed before, or makes a new question: fresh. Nil: there are too many.
func (k *kernel) pose(key string) (number uint64, p *posed, fresh bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for number, p := range k.questions {
		if key != "" && p.key == key {
			p.waiting++
			return number, p, false
		}
	}
	if len(k.questions) >= maxPosed {
		maps.DeleteFunc(k.questions, func(_ uint64, p *posed) bool { return p.over() })
		if len(k.questions) >= maxPosed {
			return 0, nil, false
		}
	}
	k.question++
	p = &posed{key: key, waiting: 1, answered: make(chan struct{})}
	k.questions[k.question] = p
	return k.question, p, true
}

// over reports whether a question was answered, or is no message of a comm, and nobody waits.
func (p *posed) over() bool {
	select {
	case <-p.answered:
		return p.waiting == 0
	default:
		return p.waiting == 0 && p.key == "" && p.written
	}
}

// leave ends a wait for an answer, which it returns if there is one.
func (k *kernel) leave(number uint64, p *posed) (answer json.RawMessage, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p.waiting--
	if p.over() {
		delete(k.questions, number)
	}
	return p.answer, p.answer != nil
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

// deliverAnswer passes an answer to its callers. That of a message of a comm is kept for one who asks again.
func (k *kernel) deliverAnswer(number uint64, content json.RawMessage) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.questions[number]
	if p == nil || p.answer != nil {
		return
	}
	p.answer = append(json.RawMessage{}, content...) // not nil
	close(p.answered)
	if p.key == "" && p.over() {
		delete(k.questions, number)
	}
}
