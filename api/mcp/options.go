package mcp

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/mark3labs/mcp-go/server"
)

// Options are the settings of a Server. Farm is required, everything else has a default.
type Options struct {
	// Farm returns the farm as the caller of a request sees it; the context says who that is.
	Farm    func(ctx context.Context) Farm
	Version string       // of the farm; default "dev"
	Logger  *slog.Logger // default: nothing is logged
	Limits  Limits
	// Local reads and writes files on the caller's own machine. It is nil if the server runs elsewhere, as over HTTP: then
	// tools that are given such a file say what to do instead.
	Local LocalFiles
	HTTP  HTTP
	// NoAllowlist: the farm refuses the network allowlist, so the tools do not offer it. False: it does not, or the server cannot know.
	NoAllowlist bool
	// TaskTTL is how long a job can be read, counted from its creation. Callers over HTTP that declare the Tasks extension
	// then get a task for work that may take long. Zero: no tasks.
	TaskTTL time.Duration
	// Server are further options of mcp-go's server, such as an extension to advertise.
	Server []server.ServerOption
}

// Limits are the limits of one answer. Zero fields have the default.
type Limits struct {
	TextBytes      int   // of an output stream, in text and structured content; default 32 KiB, head and tail
	InlineText     int64 // of a file whose text is part of the answer; default 64 KiB
	ImageBytes     int64 // of one image block; default 1 MiB
	Images         int   // image blocks of one answer; default 8
	Links          int   // artifacts of one answer, each with a resource link; default 50
	ListedFiles    int   // entries of list_files; default 1000
	ResourceText   int64 // of a text that resources/read returns; default 1 MiB
	ResourceBlob   int64 // of anything else that it returns; default 8 MiB
	LocalFileBytes int64 // of a file written on the caller's machine; default 64 MiB
}

// HTTP are the settings of the transport. Zero fields have the default.
type HTTP struct {
	MaxBodyBytes int64    // of one request; default 16 MiB
	Origins      []string // of web pages that may call, such as https://chat.example.com; pages on loopback are always allowed
	Hosts        []string // allowed in the Host header of a connection over loopback, in addition to loopback names
	// AnyHost accepts requests with any host name. That is safe if callers authenticate: a page that points its own name here
	// (DNS rebinding) has no key.
	AnyHost bool
	// WriteTimeout closes a connection that accepts no bytes of an answer for so long; default 30 s.
	WriteTimeout time.Duration
	// Closing ends subscriptions, which have no end of their own, so that the server can stop.
	Closing <-chan struct{}
	// Extensions wrap mcp-go's handler inside the guards; the first one is the outermost.
	Extensions []Extension
}

// Extension wraps mcp-go's handler: it answers the methods that it knows and passes on the rest. Requests have passed the guards,
// and their bodies are complete and in memory.
type Extension func(m *server.MCPServer, next http.Handler) http.Handler

// Time limits of calls. Clients and some proxies give up after 60 s.
const (
	waitDefault   = 45 * time.Second       // of the execute tools
	waitMax       = 50 * time.Second       // of all tools
	createWait    = 45 * time.Second       // for a new sandbox
	closeWait     = 10 * time.Second       // for the end of one; the close continues without the caller
	stopWait      = 10 * time.Second       // for a canceled job to stop
	restartWait   = 20 * time.Second       // for the restart of a kernel
	readWait      = 2 * time.Second        // for output of a process
	readQuiet     = 250 * time.Millisecond // without more output end a read of it
	progressPause = 250 * time.Millisecond // between two messages of live output
	progressQuiet = 8 * time.Second        // until a sign of life when there is no output
)

func (o Options) withDefaults() Options {
	if o.Version == "" {
		o.Version = "dev"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Limits = o.Limits.withDefaults()
	return o
}

func (o Options) validate() error {
	if o.Farm == nil {
		return errors.New("mcp: Options.Farm must be set")
	}
	return nil
}

func (l Limits) withDefaults() Limits {
	orElse(&l.TextBytes, 32<<10)
	orElse(&l.InlineText, 64<<10)
	orElse(&l.ImageBytes, 1<<20)
	orElse(&l.Images, 8)
	orElse(&l.Links, 50)
	orElse(&l.ListedFiles, 1000)
	orElse(&l.ResourceText, 1<<20)
	orElse(&l.ResourceBlob, 8<<20)
	orElse(&l.LocalFileBytes, 64<<20)
	return l
}

func (h HTTP) withDefaults() HTTP {
	orElse(&h.MaxBodyBytes, 16<<20)
	orElse(&h.WriteTimeout, 30*time.Second)
	return h
}

// orElse gives a field of zero its default.
func orElse[T comparable](field *T, standard T) {
	if *field == *new(T) {
		*field = standard
	}
}
