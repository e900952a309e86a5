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

// Rules of memory.
const (
	fullAt      = 0.7         // of Redis's maxmemory: above it nothing new is taken in, so that what is in can end
	pressureFor = time.Second // how long a look at Redis's memory is believed
	infoTimeout = time.Second // the look is a courtesy: what hangs here shows elsewhere
)

// pressure remembers how full Redis is.
type pressure struct {
	mu   sync.Mutex
	at   time.Time
	full bool
}

// crowded is CodeExhausted while Redis is fuller than it should be. A Redis without a limit, or that does not tell, is not.
func (s *Store) crowded(ctx context.Context) error {
	s.pressure.mu.Lock()
	defer s.pressure.mu.Unlock()
	if now := time.Now(); now.Sub(s.pressure.at) >= pressureFor {
		ctx, done := context.WithTimeout(ctx, infoTimeout)
		defer done()
		info, err := s.rdb.Info(ctx, "memory").Result()
		if reply, ok := errors.AsType[redis.Error](err); err == nil || ok && !passing(reply) {
			s.pressure.at, s.pressure.full = now, filled(info) >= fullAt
		}
	}
	if !s.pressure.full {
		return nil
	}
	return farm.Errorf(farm.CodeExhausted, "The farm's memory for jobs is %d %% full, and it takes no new ones. Try again when some have ended.", int(fullAt*100))
}

// filled is the part of its memory limit that Redis uses; 0 when it has none.
func filled(info string) float64 {
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

// urgent reports whether a job ends or stops something: those are always taken.
func urgent(kind farm.JobKind) bool {
	return kind == farm.KindClose || kind == farm.KindInterrupt || kind == farm.KindRestart
}
