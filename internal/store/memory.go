package store

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Rules for a Redis that fills up.
const (
	fullAt       = 0.7         // of Redis's maxmemory: above it only jobs that end or stop something are accepted, so that Redis keeps room for accepted jobs to end
	memoryUseTTL = time.Second // how long the last reading of Redis's memory is used
	infoTimeout  = time.Second // a Redis that hangs here also fails the call that follows, with a better error
)

// memoryUse remembers whether Redis is nearly full.
type memoryUse struct {
	mu   sync.Mutex
	at   time.Time
	full bool
}

// checkMemory is CodeExhausted while Redis is nearly full. A Redis without a limit, or one that does not report it, never is.
func (s *Store) checkMemory(ctx context.Context) error {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	if now := time.Now(); now.Sub(s.memory.at) >= memoryUseTTL {
		ctx, done := context.WithTimeout(ctx, infoTimeout)
		defer done()
		info, err := s.rdb.Info(ctx, "memory").Result()
		if reply, ok := errors.AsType[redis.Error](err); err == nil || ok && !transient(reply) {
			s.memory.at, s.memory.full = now, usedShare(info) >= fullAt
		}
	}
	if !s.memory.full {
		return nil
	}
	return farm.Errorf(farm.CodeExhausted, "The farm's memory for jobs is %d %% full, so it accepts no new ones. Try again when some have ended.", int(fullAt*100))
}

// usedShare is the share of its memory limit that Redis uses; 0 if it has none.
func usedShare(info string) float64 {
	var used, limit float64
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "used_memory":
			used, _ = strconv.ParseFloat(value, 64)
		case "maxmemory":
			limit, _ = strconv.ParseFloat(value, 64)
		}
	}
	if limit <= 0 {
		return 0
	}
	return used / limit
}

// urgent reports whether a job ends or stops something: those are always accepted.
func urgent(kind farm.JobKind) bool {
	return kind == farm.KindClose || kind == farm.KindInterrupt || kind == farm.KindRestart
}
