package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// askTimeout bounds a question of a notebook: the kernel may have to start, and to end what it does.
	askTimeout = 2 * time.Minute
	// messagesSpare is how much longer than its wait a question for messages may take.
	messagesSpare = 20 * time.Second
)

func kernelPath(contextName, what string) string {
	return agent.KernelsPath + "/" + url.PathEscape(contextName) + "/" + what
}

// Ask asks the kernel of a context what a notebook asks. The answer is the content of Jupyter's reply, of up to agent.MaxAnswerBytes.
// CodeTooLarge: it would have more.
func (l Live) Ask(ctx context.Context, contextName string, q agent.NotebookQuestion) (json.RawMessage, error) {
	var out json.RawMessage
	const line = 1 // ends the answer
	return out, l.callFor(ctx, askTimeout, http.MethodPost, kernelPath(contextName, "ask"), nil, q, answer{&out, agent.MaxAnswerBytes + line, agent.MaxAnswerBytes})
}

// Input gives the code of a context the line of input that it waits for.
func (l Live) Input(ctx context.Context, contextName string, in agent.NotebookInput) error {
	return l.call(ctx, callTimeout, http.MethodPost, kernelPath(contextName, "input"), nil, in, nil)
}

// Messages reads what the kernel of a context has said to notebooks beside its executions after the message with a number, about
// 256 KiB at once. It waits for a message if there is none. admit is called with the size of each before it is allocated; its error is
// returned as it is.
func (l Live) Messages(ctx context.Context, contextName string, after uint64, wait time.Duration, admit func(bytes int) error) (list []agent.Message, err error) {
	ctx, done := context.WithTimeout(ctx, wait+messagesSpare)
	defer done()
	query := url.Values{"after": {strconv.FormatUint(after, 10)}, "wait": {strconv.FormatInt(wait.Milliseconds(), 10)}}
	res, err := l.do(ctx, http.MethodGet, kernelPath(contextName, "messages"), query, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	r := bufio.NewReader(res.Body)
	for {
		var refused error
		frame, err := agent.ReadAdmittedFrame(r, func(bytes int) error { refused = admit(bytes); return refused })
		switch {
		case refused != nil:
			return list, refused
		case errors.Is(err, io.EOF):
			return list, nil
		case err != nil:
			return list, unavailable(err, "The connection to the sandbox is broken.")
		}
		leave, err := budget.Core(ctx, len(frame.Payload))
		if err != nil {
			return list, err
		}
		var m agent.Message
		err = json.Unmarshal(frame.Payload, &m)
		leave()
		if frame.Type != agent.FrameMessage || frame.Seq <= after || err != nil || wrongMessage(m) || len(list) >= maxMessages {
			return list, farm.Errorf(farm.CodeInternal, "the agent sent a message of a kernel that cannot be")
		}
		m.Seq, after = frame.Seq, frame.Seq
		list = append(list, m)
	}
}

// wrongMessage reports whether an agent cannot have sent a message. What is beside its content is kept, and charged to nobody.
func wrongMessage(m agent.Message) bool {
	const ellipsis = len("…")
	return len(m.Content) == 0 || len(m.Kind) > agent.MaxKindBytes+ellipsis || len(m.Parent) > agent.MaxParentBytes+ellipsis ||
		m.Execution != "" && !farm.ValidID(farm.JobPrefix, m.Execution)
}

// maxMessages bounds the messages of one answer.
const maxMessages = 10_000

// maxLanguage bounds the name of a language, in bytes.
const maxLanguage = 32

// wrongContext reports whether an agent cannot have said this of a context.
func wrongContext(c farm.CodeContext) bool {
	return c.Name == "" || len(c.Name) > agent.MaxContextBytes || c.Language == "" || len(c.Language) > maxLanguage ||
		!path.IsAbs(c.Cwd) || len(c.Cwd) > farm.MaxPathBytes
}

var errContexts = farm.Errorf(farm.CodeInternal, "the agent listed contexts that cannot be")

// Contexts lists the contexts in which code runs, the oldest first.
func (l Live) Contexts(ctx context.Context) ([]farm.CodeContext, error) {
	var list []farm.CodeContext
	if err := l.call(ctx, callTimeout, http.MethodGet, agent.ContextsPath, nil, nil, &list); err != nil {
		return nil, err
	}
	if len(list) > agent.MaxContexts || slices.ContainsFunc(list, wrongContext) {
		return nil, errContexts
	}
	return list, nil
}

func contextPath(name string) string { return agent.ContextsPath + "/" + url.PathEscape(name) }

// CreateContext makes a context, and returns it with its directory.
func (l Live) CreateContext(ctx context.Context, c farm.CodeContext) (farm.CodeContext, error) {
	var made farm.CodeContext
	if err := l.call(ctx, callTimeout, http.MethodPut, contextPath(c.Name), nil, c, &made); err != nil {
		return made, err
	}
	if wrongContext(made) {
		return made, errContexts
	}
	return made, nil
}

// RemoveContext ends a context and what runs in it.
func (l Live) RemoveContext(ctx context.Context, name, language string) error {
	return l.call(ctx, callTimeout, http.MethodDelete, contextPath(name), url.Values{"language": {language}}, nil, nil)
}

// maxPackages bounds the list of packages that an agent may return.
const maxPackages = 20_000

// packageValues bounds the JSON values of a package, and packageBytes its JSON on average: name and version have 256 bytes together.
const packageValues, packageBytes = 8, 512

// Packages lists the packages installed in the sandbox, sorted by manager and name.
func (c *Client) Packages(ctx context.Context) ([]farm.Package, error) {
	var found []farm.Package
	if err := c.callFor(ctx, callTimeout, http.MethodGet, "/v1/packages", nil, nil, answer{&found, maxPackages * packageBytes, maxPackages*packageValues + fewValues}); err != nil {
		return nil, err
	}
	if len(found) > maxPackages {
		return nil, farm.Errorf(farm.CodeTooLarge, "The sandbox has more than %d packages.", maxPackages)
	}
	return found, nil
}
