// Package relay passes interactive streams between the API and the agent of a sandbox, over the sandbox's worker (ADR 12). Both ends are here:
//
//   - Path, the API's, picks a live worker of the sandbox's node and falls over to another one.
//   - Server, the worker's, is a listener to which only the API can connect. It passes each request on to the agent of the sandbox that it names, as one
//     stream; a connection to a port it joins with the port itself. It compares the sandbox's generation with the record first, counts streams,
//     charges their memory, and notes that the sandbox is in use while bytes pass. It knows nothing of what they carry.
//
// Between them are the certificates by which the API and the workers know each other (Identity, Authorities), and the addresses of sandboxes behind
// a worker (Target).
package relay

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/agent/transport"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// workersFor is how long a list of workers is used again.
	workersFor = 2 * time.Second
	// dialTimeout bounds a connection to a worker with its handshake.
	dialTimeout = 5 * time.Second
	// pingAfter and pingTimeout bound how long a connection to a worker whose machine is gone is used.
	pingAfter, pingTimeout = 5 * time.Second, 5 * time.Second
	// idleTimeout closes connections without streams.
	idleTimeout = time.Minute
	// answerWindow is what a worker may send ahead on one stream, and so what a slow caller may keep in this process's memory. The window of a
	// connection holds those of all its streams, since net/http gives back what was sent only once it is read: with less, some streams that nobody
	// reads would stop the others.
	answerWindow = 32 << 10
)

// HeaderElsewhere in an answer of a worker says that another worker of the node should be asked.
const HeaderElsewhere = "Sandfarm-Elsewhere"

// Path is the API's end of the live path. It is safe for concurrent use.
type Path struct {
	identity *Identity
	list     func(context.Context) ([]farm.Worker, error)
	http     *http.Transport

	mu        sync.Mutex
	workers   []farm.Worker
	readAt    time.Time
	addresses map[string]string // of workers, by host
	names     map[string]string // ids of workers, by host
}

// NewPath makes the API's end. workers lists the live workers.
func NewPath(identity *Identity, workers func(context.Context) ([]farm.Worker, error)) *Path {
	p := &Path{identity: identity, list: workers, addresses: map[string]string{}, names: map[string]string{}}
	p.http = &http.Transport{
		DialTLSContext: p.dial, ForceAttemptHTTP2: true, DisableCompression: true, IdleConnTimeout: idleTimeout, MaxResponseHeaderBytes: 64 << 10,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: pingAfter, PingTimeout: pingTimeout, MaxReceiveBufferPerStream: answerWindow, MaxReceiveBufferPerConnection: connectionStreams * answerWindow,
		},
	}
	return p
}

// Close closes the connections that are not in use.
func (p *Path) Close() { p.http.CloseIdleConnections() }

// Sandbox carries requests to the agent of a sandbox, whose record says where it is. Only paths below agent.LivePrefix are taken. A request that
// no worker has begun is sent to the next one of the node, as is a PUT whose body is in memory; an answer that breaks off is the caller's to continue.
func (p *Path) Sandbox(box *farm.Sandbox) http.RoundTripper {
	return p.way(box)
}

func (p *Path) way(box *farm.Sandbox) *sandboxPath {
	return &sandboxPath{path: p, node: box.Node, target: Target{Ref: box.Ref(), Generation: box.Generation}}
}

type sandboxPath struct {
	path   *Path
	node   string
	target Target
}

// RoundTrip sends a request to the first worker of the node that takes it.
func (s *sandboxPath) RoundTrip(req *http.Request) (res *http.Response, err error) {
	body := &watchedBody{ReadCloser: req.Body}
	defer func() {
		if err != nil {
			body.close()
		}
	}()
	repeats := req.Method == http.MethodPut && req.GetBody != nil // an agent does it once, however often it comes
	err = s.each(req.Context(), func(w farm.Worker) (again bool, err error) {
		if body.wasRead() {
			fresh, err := req.GetBody()
			if err != nil {
				return false, err
			}
			body.close()
			body = &watchedBody{ReadCloser: fresh}
		}
		res, err = s.send(req, w, body, repeats) //nolint:bodyclose // the caller closes it
		return repeats || !body.wasRead(), err
	})
	return res, err
}

// each calls try with the workers of the node, one after the other, until it succeeds or says that another one must not be tried.
func (s *sandboxPath) each(ctx context.Context, try func(farm.Worker) (again bool, err error)) error {
	tried := map[string]bool{}
	var last error
	for _, fresh := range []bool{false, true} {
		workers, err := s.path.candidates(ctx, s.node, s.target.Ref.ID, fresh)
		if err != nil {
			return err
		}
		for _, w := range workers {
			if tried[w.ID] {
				continue
			}
			tried[w.ID] = true
			again, err := try(w)
			if err == nil || !again || ctx.Err() != nil {
				return err
			}
			last = err
		}
	}
	return farm.Wrap(last, farm.CodeUnavailable, "No worker of the sandbox's node can be reached now. The sandbox and its processes run on; send the request again in a few seconds.")
}

// send sends a request to one worker. An answer that says that another one should be asked is an error.
func (s *sandboxPath) send(req *http.Request, w farm.Worker, body *watchedBody, repeats bool) (*http.Response, error) {
	lent := &triedBody{watchedBody: body}
	out := req.Clone(req.Context())
	out.URL.Scheme, out.URL.Host, out.Host = "https", host(w.ID), ""
	out.URL.Path, out.URL.RawPath = s.target.path(req.URL.Path), ""
	if req.Body != nil && req.Body != http.NoBody {
		out.Body = lent
		out.GetBody = nil
	}
	res, err := s.path.http.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	if res.Header.Get(HeaderElsewhere) != "" && (repeats || !body.wasRead()) {
		_ = res.Body.Close()
		return nil, errElsewhere
	}
	lent.settle()
	return res, nil
}

var errElsewhere = errors.New("the worker is stopping, or does not serve the sandbox's node")

// watchedBody knows whether anything of a request's body was read: then it cannot be sent again.
type watchedBody struct {
	io.ReadCloser
	mu   sync.Mutex
	read bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	b.read = true
	b.mu.Unlock()
	return b.ReadCloser.Read(p)
}

func (b *watchedBody) wasRead() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.read
}

// close closes the body, if there is one.
func (b *watchedBody) close() {
	if b.ReadCloser != nil {
		_ = b.Close()
	}
}

// triedBody is a body as one worker gets it. Closing it closes the body only if that worker has read of it or has answered: otherwise the next
// one gets it.
type triedBody struct {
	*watchedBody
	mu                     sync.Mutex
	begun, settled, closed bool
}

// Read implements io.Reader.
func (b *triedBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	closed := b.closed
	b.begun = b.begun || !closed
	b.mu.Unlock()
	if closed {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.watchedBody.Read(p)
}

// Close implements io.Closer.
func (b *triedBody) Close() error {
	b.mu.Lock()
	b.closed = true
	over := b.begun || b.settled
	b.mu.Unlock()
	if over {
		b.close()
	}
	return nil
}

// settle leaves the body to the worker that has answered.
func (b *triedBody) settle() {
	b.mu.Lock()
	b.settled = true
	over := b.closed
	b.mu.Unlock()
	if over {
		b.close()
	}
}

// candidates are the live workers of a node that listen. Those of one sandbox are always in the same order, which differs from sandbox to
// sandbox: so a worker keeps its connection to an agent, and the sandboxes of a node are spread over its workers.
func (p *Path) candidates(ctx context.Context, node, sandbox string, fresh bool) ([]farm.Worker, error) {
	p.mu.Lock()
	known, age := p.workers, time.Since(p.readAt)
	p.mu.Unlock()
	if fresh || age > workersFor {
		list, err := p.list(ctx)
		if err != nil {
			return nil, err
		}
		p.learn(list)
		known = list
	}
	var out []farm.Worker
	for _, w := range known {
		if w.Node == node && w.Live != "" {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(a, b farm.Worker) int {
		return cmp.Or(cmp.Compare(order(sandbox, a.ID), order(sandbox, b.ID)), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

// order is the place of a worker among those of a sandbox.
func order(sandbox, worker string) uint32 {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(sandbox + "\x00" + worker))
	return sum.Sum32()
}

func (p *Path) learn(workers []farm.Worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workers, p.readAt = workers, time.Now()
	p.addresses, p.names = make(map[string]string, len(workers)), make(map[string]string, len(workers))
	for _, w := range workers {
		if w.Live != "" {
			p.addresses[host(w.ID)], p.names[host(w.ID)] = w.Live, w.ID
		}
	}
}

// dial connects to the worker that the URL names.
func (p *Path) dial(ctx context.Context, _, address string) (net.Conn, error) {
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	return p.connect(ctx, name, "h2")
}

// connect connects to the worker of a name, and to no other: its certificate must have it.
func (p *Path) connect(ctx context.Context, name, protocol string) (*tls.Conn, error) {
	ctx, done := context.WithTimeout(ctx, dialTimeout)
	defer done()
	p.mu.Lock()
	to, worker := p.addresses[name], p.names[name]
	p.mu.Unlock()
	if to == "" {
		return nil, errors.New("the worker is gone")
	}
	config, err := p.identity.clientTLS(worker, protocol)
	if err != nil {
		return nil, err
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, err
	}
	if protocol != "h2" { // that has windows of its own
		_ = transport.Bound(conn.(*net.TCPConn)) //nolint:errcheck // a tcp connection is one
	}
	secure := tls.Client(&Below{Conn: conn}, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secure, nil
}

// Agent is what a sandbox's agent does for callers over the live path.
type Agent struct {
	client.Live
	way *sandboxPath
}

// Output is an answer with output of a process.
type Output = client.ProcessOutput

// Agent is the agent of a sandbox.
func (p *Path) Agent(box *farm.Sandbox) Agent {
	way := p.way(box)
	return Agent{client.NewLive(way), way}
}

// FileEvents is an answer with changes of files.
type FileEvents = agent.FileEvents

// Kinds of changes.
const (
	FileCreated = agent.FileCreated
	FileChanged = agent.FileChanged
	FileRemoved = agent.FileRemoved
	FileDropped = agent.FileDropped
	FileRenamed = agent.FileRenamed
)

// Piece is a piece of content.
type Piece = client.Piece

// PieceOf is a piece of bytes that are known.
func PieceOf(b []byte) *Piece { return client.PieceOf(b) }

// FileEvent is one change.
type FileEvent = agent.FileEvent

// FileKind says what happened to a file.
type FileKind = agent.FileKind

// Message is what a kernel says to notebooks beside its executions.
type Message = agent.Message

// Question is what a notebook asks of a kernel.
type Question = agent.NotebookQuestion

// Input is the answer of a notebook to a question for input.
type Input = agent.NotebookInput
