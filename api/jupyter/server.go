package jupyter

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/guard"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Config are the settings of a Server. All are required.
type Config struct {
	Service   *service.Service
	Version   string
	Heartbeat time.Duration // between two pings
	Stall     time.Duration // how long a client may take nothing, or leave a ping unanswered
	Guard     guard.Guard   // pages that may open a WebSocket
	Log       *slog.Logger
	Closing   <-chan struct{} // closed when the server stops
	// Opened is called when a WebSocket begins.
	Opened func(*gin.Context)
	// More counts the messages of a WebSocket that are requests to the farm.
	More More
	// Now tells the time.
	Now func() time.Time
}

// Server serves the routes. Create it with New, and stop it with Close.
type Server struct {
	cfg     Config
	started time.Time
	life    context.Context // of what outlives requests
	end     context.CancelFunc
	work    sync.WaitGroup // sessions that run cells, and WebSockets

	mu      sync.Mutex
	kernels map[farm.Ref]*kernel // those with sessions
}

// New makes a server. It does no I/O.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, started: cfg.Now(), kernels: map[farm.Ref]*kernel{}}
	s.life, s.end = context.WithCancel(context.Background()) //nolint:forbidigo // Close ends it
	return s
}

// Drain ends all WebSockets: their clients connect again, to another process. Cells run on, as all jobs do.
func (s *Server) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
}

// Close waits for the end of what Drain has ended. WebSockets that come later are refused.
func (s *Server) Close() {
	s.Drain()
	s.work.Wait()
}

// begin counts a WebSocket, until work.Done, unless the server stops.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return false
	}
	s.work.Add(1)
	return true
}
