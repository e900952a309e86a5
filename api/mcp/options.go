package mcp

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/mark3labs/mcp-go/server"
)

// Options are what a Server is made of. Farm is needed, all else has a default.
type Options struct {
	// Farm gives the farm as the caller of a request sees it: who that is, the context tells.
	Farm    func(ctx context.Context) Farm
	Version string       // of the farm; default "dev"
	Logger  *slog.Logger // default: nothing is logged
	Limits  Limits
	// Local reads and writes files on the caller's own machine. Nil, as over HTTP, where the server runs elsewhere:
	// tools that name such a file say what to do instead.
	Local LocalFiles
	HTTP  HTTP
	// TaskTTL is how long a job can be looked at, counted from its creation. Callers over HTTP who declare the Tasks
	// extension then get a task for work that may take long. Zero: there are no tasks.
	TaskTTL time.Duration
	// Server are further options of mcp-go's server, such as an extension that it is to advertise.
	Server []server.ServerOption
}

// Limits bound what one answer holds. A field of zero means its default.
type Limits struct {
	TextBytes      int   // of an output stream in a text block; default 32 KiB, head and tail
	InlineText     int64 // of a file whose text stands in the answer; default 64 KiB
	ImageBytes     int64 // of one image block; default 1 MiB
	Images         int   // image blocks of one answer; default 8
	Links          int   // resource links of one answer; default 50
	ListedFiles    int   // entries of list_files; default 1000
	ResourceText   int64 // of a text that resources/read gives; default 1 MiB
	ResourceBlob   int64 // of anything else that it gives; default 8 MiB
	LocalFileBytes int64 // of a file that is written on the caller's machine; default 64 MiB
}

// HTTP are the settings of the transport. A field of zero means its default.
type HTTP struct {
	MaxBodyBytes int64    // of one request; default 16 MiB
	Origins      []string // of web pages that may call, such as https://chat.example.com; pages on loopback always may
	Hosts        []string // names in the Host header, beside loopback ones, that a connection over loopback may carry
	// AnyHost takes requests under any name: where callers prove who they are, a page that pointed its own name here
	// gains nothing.
	AnyHost bool
	// WriteTimeout ends a connection that takes nothing of an answer for so long; default 30 s.
	WriteTimeout time.Duration
	// Closing ends subscriptions, which know no other end, so that a server that has any can stop.
	Closing <-chan struct{}
	// Extensions wrap mcp-go's handler inside the guards; the first one is the outermost.
	Extensions []Extension
}

// Extension puts a handler in front of mcp-go's: it answers what it knows and hands on the rest. Requests that reach it
// have passed the guards, and their bodies are whole and in memory.
type Extension func(m *server.MCPServer, next http.Handler) http.Handler

// Time limits of calls. Clients give up after 60 s, and some proxies as well.
const (
	waitDefault   = 45 * time.Second       // of the execute tools
	waitMax       = 50 * time.Second       // of all tools
	createWait    = 45 * time.Second       // for a new sandbox
	closeWait     = 10 * time.Second       // for the end of one; the close continues without the caller
	stopWait      = 10 * time.Second       // for a canceled job to stop
	restartWait   = 20 * time.Second       // for the restart of a kernel
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
		return errors.New("mcp: there is no farm")
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
