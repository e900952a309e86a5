package kernel

import (
	"context"
	"encoding/json"
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
