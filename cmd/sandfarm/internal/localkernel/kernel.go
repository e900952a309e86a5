package localkernel

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/zmtp"
)

const (
	// maxAskers bounds the messages that are remembered until they are answered. Answers to older ones are dropped.
	maxAskers = 10_000
	// waitingMessages is how many messages of clients wait for the farm. The connections of clients hold those behind them.
	waitingMessages = 16
	// firstPause and lastPause are the pauses between two tries to reach the farm: the first, and the longest.
	firstPause, lastPause = 500 * time.Millisecond, 10 * time.Second
	// endWait bounds the end of the kernel in the farm: a client kills this process some five seconds after it has asked for its end.
	endWait = 4 * time.Second
	// parentPoll is how often this process looks whether its client is still there.
	parentPoll = time.Second
)

// Config says what Run runs.
type Config struct {
	URL        string            // of the farm
	Key        string            // API key; "": none is sent
	Spec       string            // the farm's kernelspec: an image; "": the default
	Env        map[string]string // variables of the kernel; those that begin with KERNEL_ are options of the sandbox (docs/jupyter.md)
	Connection Connection
	Parent     bool // end when the process that started this one has ended
	Log        *slog.Logger
	HTTP       *http.Client // nil: http.DefaultTransport
}

// kernel is the kernel that Run serves.
type kernel struct {
	cfg  Config
	farm remote
	path string // of the farm's session
	as   string // the id of this process's WebSocket session
	up   chan *message
	stop context.CancelCauseFunc

	shell, control, stdin, iopub, beat *zmtp.Socket

	mu     sync.Mutex
	id     string // of the farm's kernel; "": there is none
	own    bool   // the farm's session is this kernel's
	askers map[string]*zmtp.Peer
	order  []string
}

// Reasons for which Run ends.
var (
	errShutdown = errors.New("the client has shut the kernel down")
	errRestart  = errors.New("the client restarts the kernel")
	errParent   = errors.New("the client is gone")
)

// Run is a kernel of this machine until the client shuts it down or ctx ends. A shutdown is no error.
func Run(ctx context.Context, cfg Config) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	k := &kernel{
		cfg: cfg, farm: remote{base: cfg.URL + "/jupyter", key: cfg.Key, http: cmp.Or(cfg.HTTP, &http.Client{})},
		path: cfg.Connection.session(), as: newID(), up: make(chan *message, waitingMessages), stop: stop, askers: map[string]*zmtp.Peer{},
	}
	if err := k.listen(ctx); err != nil {
		return err
	}
	defer k.close()
	if cfg.Parent {
		go k.watchParent(ctx)
	}
	err := k.serve(ctx)
	cause := context.Cause(ctx)
	if !errors.Is(cause, errRestart) { // the process that comes next finds it
		k.end(ctx)
	}
	if cause != nil {
		return nil //nolint:nilerr // the end was asked for
	}
	return err
}

// listen opens the five sockets.
func (k *kernel) listen(ctx context.Context) error {
	c := k.cfg.Connection
	take := func(channel string) func(*zmtp.Peer, [][]byte) {
		return func(p *zmtp.Peer, frames [][]byte) { k.take(ctx, channel, p, frames) }
	}
	for _, s := range []struct {
		into    **zmtp.Socket
		port    int
		kind    zmtp.Kind
		receive func(*zmtp.Peer, [][]byte)
	}{
		{&k.iopub, c.IOPub, zmtp.Pub, nil}, // first: it announces a shutdown
		{&k.shell, c.Shell, zmtp.Router, take(shell)},
		{&k.control, c.Control, zmtp.Router, take(control)},
		{&k.stdin, c.Stdin, zmtp.Router, take(stdin)},
		{&k.beat, c.Heartbeat, zmtp.Rep, func(p *zmtp.Peer, frames [][]byte) { _ = p.Send(frames) }},
	} {
		l, err := c.listen(ctx, s.port)
		if err != nil {
			k.close()
			return err
		}
		*s.into = zmtp.Serve(l, s.kind, s.receive)
	}
	return nil
}

func (k *kernel) close() {
	k.stop(nil)
	for _, s := range []*zmtp.Socket{k.shell, k.control, k.stdin, k.iopub, k.beat} {
		if s != nil {
			s.Close()
		}
	}
}

// watchParent ends Run when the process that started this one has.
func (k *kernel) watchParent(ctx context.Context) {
	parent := os.Getppid()
	tick := time.NewTicker(parentPoll)
	defer tick.Stop()
	for ctx.Err() == nil && os.Getppid() == parent {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	k.stop(errParent)
}

// serve has the farm run the kernel, and starts it again in another sandbox when that is needed after the first has ended.
func (k *kernel) serve(ctx context.Context) error {
	var pending *message
	for again := false; ; again = true {
		if err := k.start(ctx); err != nil {
			return err
		}
		if again {
			k.tell(pending, "The sandbox of this kernel has ended. This is a new one: its variables and files are gone.")
		}
		err := k.carry(ctx, pending)
		if !errors.Is(err, errEnded) {
			return err
		}
		k.mu.Lock()
		k.id = ""
		k.mu.Unlock()
		select {
		case pending = <-k.up:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// start makes a kernel in the farm. One that an earlier process for the same connection left is taken again, without its variables.
func (k *kernel) start(ctx context.Context) error {
	found, err := k.farm.find(ctx, k.path)
	if err != nil {
		return err
	}
	if found != nil {
		k.started(found)
		return k.farm.restart(ctx, found.Kernel.ID)
	}
	host, _ := os.Hostname() // it is only shown
	made, err := k.farm.make(ctx, k.path, "a kernel on "+cmp.Or(host, "another machine"), k.cfg.Spec, k.cfg.Env)
	if err == nil {
		k.started(&made)
	}
	return err
}

func (k *kernel) started(s *session) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.id, k.own = s.Kernel.ID, s.Path == k.path
}

// end shuts the kernel down in the farm.
func (k *kernel) end(ctx context.Context) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), endWait)
	defer done()
	k.mu.Lock()
	id, own := k.id, k.own
	k.mu.Unlock()
	if id == "" { // it may have been made, and the answer lost
		if found, err := k.farm.find(ctx, k.path); err == nil && found != nil {
			id, own = found.Kernel.ID, true
		}
	}
	if id == "" || !own {
		return
	}
	if err := k.farm.remove(ctx, endWait, id); err != nil && !errors.Is(err, errEnded) {
		k.cfg.Log.Warn("the kernel could not be shut down: its sandbox ends when it has been idle", "kernel", id, "error", err)
	}
}

// carry passes messages on between clients and the farm, over one connection after another, until the kernel has ended.
func (k *kernel) carry(ctx context.Context, pending *message) error {
	pause := firstPause
	for {
		conn, err := k.farm.dial(ctx, k.id, k.as)
		if err == nil {
			pause = firstPause
			pending, err = k.connected(ctx, conn, pending)
		}
		if _, fatal := errors.AsType[fatalError](err); fatal || errors.Is(err, errEnded) || ctx.Err() != nil {
			return err
		}
		k.cfg.Log.Warn("the connection to the farm has ended: it is made again", "error", err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		pause = min(2*pause, lastPause)
	}
}

// connected passes messages on over one connection. It returns the message that could not be sent.
func (k *kernel) connected(ctx context.Context, conn *websocket.Conn, pending *message) (*message, error) {
	defer func() { _ = conn.CloseNow() }()
	ctx, broken := context.WithCancelCause(ctx)
	var reading sync.WaitGroup
	reading.Go(func() { broken(k.read(ctx, conn)) })
	defer reading.Wait()
	defer broken(nil)
	for {
		if pending != nil {
			if err := conn.Write(ctx, websocket.MessageBinary, pending.encode()); err != nil {
				return pending, cmp.Or(context.Cause(ctx), err)
			}
		}
		select {
		case pending = <-k.up:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// read passes on what the farm says, until the connection ends.
func (k *kernel) read(ctx context.Context, conn *websocket.Conn) error {
	for {
		_, data, err := conn.Read(ctx)
		if websocket.CloseStatus(err) == websocket.StatusNormalClosure {
			return errEnded
		}
		if err != nil {
			return err
		}
		m, err := decode(data)
		if err != nil {
			return fmt.Errorf("read a message of the farm: %w", err)
		}
		k.pass(m)
	}
}

// tell shows the user a line beside what a message causes.
func (k *kernel) tell(parent *message, text string) {
	content, _ := json.Marshal(map[string]string{"name": "stderr", "text": "[" + text + "]\n"}) // texts always encode
	k.publish("stream", parent.parts[partHeader], content)
}

// publish sends clients a message of this process's own.
func (k *kernel) publish(kind string, parent, content []byte) {
	k.pass(&message{channel: iopub, parts: [jsonParts][]byte{k.header(kind), parent, []byte("{}"), content}})
}

// header is that of a message of this process's own.
func (k *kernel) header(kind string) []byte {
	out, _ := json.Marshal(map[string]string{ // texts always encode
		"msg_id": newID(), "msg_type": kind, "session": k.as, "username": "sandfarm", "version": "5.3", "date": time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"),
	})
	return out
}

// newID makes a random id, as long as those of Jupyter.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
